"""Words for the audit trail: what was done, and to what kind of object (domain.md section 10)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ledger.wording import Words

DEEDS: Words = {
    "acknowledge_alert": pgettext_lazy("deed", "alert acknowledged"),
    "activate_user": pgettext_lazy("deed", "user activated"),
    "adjust_dispute": pgettext_lazy("deed", "dispute adjusted"),
    "apply_configuration": pgettext_lazy("deed", "configuration applied"),
    "approve_drafts": pgettext_lazy("deed", "drafts approved"),
    "approve_statement": pgettext_lazy("deed", "statement approved"),
    "change_alert_rule": pgettext_lazy("deed", "alert rule changed"),
    "change_alert_subscription": pgettext_lazy("deed", "alert subscription changed"),
    "change_calibration": pgettext_lazy("deed", "calibration changed"),
    "change_contract": pgettext_lazy("deed", "contract changed"),
    "change_password": pgettext_lazy("deed", "password changed"),
    "change_policy": pgettext_lazy("deed", "policy changed"),
    "change_pool": pgettext_lazy("deed", "pool changed"),
    "change_pool_cost": pgettext_lazy("deed", "pool cost changed"),
    "change_rate_card": pgettext_lazy("deed", "rate card changed"),
    "change_roles": pgettext_lazy("deed", "roles changed"),
    "change_service": pgettext_lazy("deed", "service changed"),
    "change_tenant": pgettext_lazy("deed", "tenant changed"),
    "close_month": pgettext_lazy("deed", "month closed"),
    "create_alert_rule": pgettext_lazy("deed", "alert rule created"),
    "create_alert_subscription": pgettext_lazy("deed", "alert subscription created"),
    "create_api_token": pgettext_lazy("deed", "API token created"),
    "create_user": pgettext_lazy("deed", "user created"),
    "deactivate_user": pgettext_lazy("deed", "user deactivated"),
    "decide_approval": pgettext_lazy("deed", "approval decided"),
    "dismiss_quarantine": pgettext_lazy("deed", "quarantine dismissed"),
    "end_calibration": pgettext_lazy("deed", "calibration ended"),
    "end_contract": pgettext_lazy("deed", "contract ended"),
    "end_holders": pgettext_lazy("deed", "held GPUs ended"),
    "end_policy": pgettext_lazy("deed", "policy ended"),
    "end_pool_cost": pgettext_lazy("deed", "pool cost ended"),
    "end_rate_card": pgettext_lazy("deed", "rate card ended"),
    "end_service": pgettext_lazy("deed", "service policy ended"),
    "end_verification": pgettext_lazy("deed", "verification ended"),
    "explain_difference": pgettext_lazy("deed", "difference explained"),
    "grant_credit": pgettext_lazy("deed", "credit granted"),
    "import_load_test": pgettext_lazy("deed", "load test imported"),
    "map_identity": pgettext_lazy("deed", "identity mapped"),
    "open_dispute": pgettext_lazy("deed", "dispute opened"),
    "open_review": pgettext_lazy("deed", "review opened"),
    "override_checklist": pgettext_lazy("deed", "checklist overridden"),
    "remove_budget": pgettext_lazy("deed", "budget removed"),
    "request_approval": pgettext_lazy("deed", "approval requested"),
    "reset_password": pgettext_lazy("deed", "password reset"),
    "resolve_alert": pgettext_lazy("deed", "alert resolved"),
    "resolve_dispute": pgettext_lazy("deed", "dispute answered or settled"),
    "retry_quarantine": pgettext_lazy("deed", "quarantine tried again"),
    "revoke_api_token": pgettext_lazy("deed", "API token revoked"),
    "set_budget": pgettext_lazy("deed", "budget set"),
    "sign_off_source": pgettext_lazy("deed", "source signed off"),
    "verify_ledger": pgettext_lazy("deed", "books verified"),
    "waive_silence": pgettext_lazy("deed", "silence waived"),
}

OBJECTS: Words = {
    "alert": _("Alert"),
    "alert_rule": _("Alert rule"),
    "alert_subscription": _("Alert subscription"),
    "api_token": _("API token"),
    "approval": _("Approval"),
    "budget": _("Budget"),
    "calibration": _("Calibration"),
    "configuration": _("Configuration"),
    "contract": _("Contract"),
    "credit": _("Credit"),
    "dispute": _("Dispute"),
    "identity": _("Identity"),
    "load_test": _("Load test"),
    "period": _("Month"),
    "policy": _("Policy"),
    "pool": _("Pool"),
    "pool_cost": _("Pool cost"),
    "quarantine": _("Quarantine"),
    "rate_card": _("Rate card"),
    "service": _("Service"),
    "source": _("Source"),
    "statement": _("Statement"),
    "tenant": _("Tenant"),
    "user": _("User"),
    "verification": _("Verification"),
}


def deed_name(action: str) -> str:
    """What an entry of the trail says was done; what has no words is shown as it is stored."""
    return str(DEEDS.get(action, action))


def object_name(object_type: str) -> str:
    return str(OBJECTS.get(object_type, object_type))
