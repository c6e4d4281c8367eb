// The keyboard, the menu of narrow screens, and nothing else. Every page works without this file.
"use strict";

(() => {
  const WAIT_FOR_SECOND_KEY_MS = 1200;
  let goingUntil = 0;

  const isTyping = (target) =>
    target instanceof HTMLElement && (target.isContentEditable || /^(input|select|textarea)$/i.test(target.tagName));

  const follow = (selector) => {
    const link = document.querySelector(selector);
    if (link) window.location.assign(link.href);
    return Boolean(link);
  };

  const actions = {
    "[": () => follow('a[data-key="["]'),
    "]": () => follow('a[data-key="]"]'),
    "/": () => { document.getElementById("search")?.focus(); return true; },
    "?": () => { document.getElementById("keys")?.showModal(); return true; },
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (Date.now() < goingUntil) {
      goingUntil = 0;
      if (/^[a-z]$/.test(event.key) && follow(`a[data-go="${event.key}"]`)) event.preventDefault();
      return;
    }
    if (event.key === "g") {
      goingUntil = Date.now() + WAIT_FOR_SECOND_KEY_MS;
      return;
    }
    if (actions[event.key]?.()) event.preventDefault();
  });

  const menu = document.querySelector("[data-menu]");
  menu?.addEventListener("click", () => {
    const isOpen = document.body.classList.toggle("menu-open");
    menu.setAttribute("aria-expanded", String(isOpen));
  });

  // A list that drops down closes when the reader turns to something else.
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details.drop[open]")) {
      if (!open.contains(event.target)) open.open = false;
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const open of document.querySelectorAll("details.drop[open]")) open.open = false;
  });

  // htmx learns of buttons that are clicked inside of a form; one elsewhere that belongs to it is told by the event.
  document.addEventListener("htmx:configRequest", ({ detail }) => {
    const button = detail.triggeringEvent?.submitter;
    if (button?.name && !detail.elt.contains(button)) detail.parameters[button.name] = button.value;
  });

  for (const button of document.querySelectorAll("[data-print]")) {
    button.addEventListener("click", () => window.print());
  }
})();
