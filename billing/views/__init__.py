"""Pages of billing: parse, authorise, call a selector, render."""
