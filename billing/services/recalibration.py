"""Accepting a re-fit: the proposal becomes a dated calibration, by two people (domain.md sections 7 and 10)."""

from __future__ import annotations

from typing import Any

from billing.core.sentences import Sentence, sentence
from billing.models import Approval, Calibration
from billing.selectors.calibration import Proposal
from billing.services.proposals import propose
from ledger.core.units import micro_text
from ledger.services.audit import Actor


def accept_refit(
    proposal: Proposal, valid_from: str, fitted_over: str, reason: str, by: Actor
) -> tuple[Approval | None, list[Sentence]]:
    """Propose the fitted costs from `valid_from` (RFC 3339) on; tolerance and concurrency stay as they are.

    Raises:
        ConfigurationError, ApprovalError: as `propose`.
    """
    row: dict[str, Any] = {
        "model": proposal.model,
        "gpu_model": proposal.gpu_model,
        "valid_from": valid_from,
        "load_test": str(sentence("refit_over", window=fitted_over))[:200],
        "input_gpu_us_per_1k": proposal.fitted.cost.input_gpu_us_per_1k,
        "cached_input_gpu_us_per_1k": proposal.fitted.cost.cached_input_gpu_us_per_1k,
        "output_gpu_us_per_1k": proposal.fitted.cost.output_gpu_us_per_1k,
    }
    versions = Calibration.objects.filter(model__name=proposal.model, gpu_model=proposal.gpu_model)
    current = versions.order_by("valid_from").last()
    if current is not None:
        row["tolerance"] = micro_text(current.tolerance_ppm)
        if current.concurrency_per_gpu_milli is not None:
            row["concurrency_per_gpu"] = micro_text(current.concurrency_per_gpu_milli * 1000)
    return propose("calibration", row, reason, by)
