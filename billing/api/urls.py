"""REST endpoints of billing, under /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from billing.api import (
    allocations,
    disputes,
    journals,
    masters,
    month_files,
    periods,
    preemptions,
    statements,
    tokens,
)

urlpatterns: list[URLPattern | URLResolver] = [
    path("allocations/", allocations.AllocationsView.as_view(), name="api-allocations"),
    path("requeued/", allocations.RequeuedView.as_view(), name="api-requeued"),
    path("preemptions/", preemptions.PreemptionsView.as_view(), name="api-preemptions"),
    path("preemptions/matrix/", preemptions.PreemptionMatrixView.as_view(), name="api-preemption-matrix"),
    path("preemptions/<uuid:preemption_id>/", preemptions.PreemptionView.as_view(), name="api-preemption"),
    path("statements/", statements.StatementsView.as_view(), name="api-statements"),
    path("statements/<uuid:statement_id>/", statements.StatementView.as_view(), name="api-statement"),
    path(
        "statements/<uuid:statement_id>/lines/",
        statements.StatementLinesView.as_view(),
        name="api-statement-lines",
    ),
    path(
        "statements/<uuid:statement_id>/preemptions/",
        statements.StatementPreemptionsView.as_view(),
        name="api-statement-preemptions",
    ),
    path("statements/<uuid:statement_id>/bill.csv", statements.BillCsvView.as_view(), name="api-bill-csv"),
    path("statements/<uuid:statement_id>/usage.csv", statements.UsageCsvView.as_view(), name="api-usage-csv"),
    path(
        "statements/<uuid:statement_id>/preemptions.csv",
        statements.PreemptionsCsvView.as_view(),
        name="api-preemptions-csv",
    ),
    path(
        "statements/<uuid:statement_id>/focus-1.2.csv",
        statements.Focus12CsvView.as_view(),
        name="api-focus-1-2-csv",
    ),
    path(
        "statements/<uuid:statement_id>/focus-1.4.csv",
        statements.Focus14CsvView.as_view(),
        name="api-focus-1-4-csv",
    ),
    path(
        "statements/<uuid:statement_id>/focus-1.4-billing-period.csv",
        statements.FocusBillingPeriodCsvView.as_view(),
        name="api-focus-billing-period-csv",
    ),
    path(
        "statements/<uuid:statement_id>/focus-1.4-invoice-detail.csv",
        statements.FocusInvoiceDetailCsvView.as_view(),
        name="api-focus-invoice-detail-csv",
    ),
    path(
        "statements/<uuid:statement_id>/<str:name>.csv.sha256",
        statements.StatementChecksumView.as_view(),
        name="api-statement-sha256",
    ),
    path("usage/tokens/", tokens.TokensView.as_view(), name="api-usage-tokens"),
    path("tenants/", masters.TenantsView.as_view(), name="api-tenants"),
    path("pools/", masters.PoolsView.as_view(), name="api-pools"),
    path("services/", masters.ServicesView.as_view(), name="api-services"),
    path("periods/", masters.PeriodsView.as_view(), name="api-periods"),
    path("periods/<str:month>/review/", periods.ReviewView.as_view(), name="api-period-review"),
    path("periods/<str:month>/checklist/", periods.ChecklistView.as_view(), name="api-period-checklist"),
    path("periods/<str:month>/close/", periods.CloseView.as_view(), name="api-period-close"),
    path(
        "periods/<str:month>/focus-1.2.csv",
        month_files.MonthFocus12CsvView.as_view(),
        name="api-month-focus-1-2-csv",
    ),
    path(
        "periods/<str:month>/focus-1.4.csv",
        month_files.MonthFocus14CsvView.as_view(),
        name="api-month-focus-1-4-csv",
    ),
    path(
        "periods/<str:month>/focus-1.4-billing-period.csv",
        month_files.MonthFocusBillingPeriodCsvView.as_view(),
        name="api-month-focus-billing-period-csv",
    ),
    path(
        "periods/<str:month>/focus-1.4-invoice-detail.csv",
        month_files.MonthFocusInvoiceDetailCsvView.as_view(),
        name="api-month-focus-invoice-detail-csv",
    ),
    path(
        "periods/<str:month>/<str:name>.csv.sha256",
        month_files.MonthChecksumView.as_view(),
        name="api-month-sha256",
    ),
    path("periods/<str:month>/journal.csv", journals.JournalCsvView.as_view(), name="api-journal-csv"),
    path(
        "periods/<str:month>/journal.beancount",
        journals.JournalBeancountView.as_view(),
        name="api-journal-beancount",
    ),
    path(
        "statements/<uuid:statement_id>/approve/",
        periods.StatementApproveView.as_view(),
        name="api-statement-approve",
    ),
    path(
        "statements/<uuid:statement_id>/disputes/",
        disputes.StatementDisputesView.as_view(),
        name="api-statement-disputes",
    ),
    path("disputes/", disputes.DisputesView.as_view(), name="api-disputes"),
    path(
        "disputes/<uuid:dispute_id>/resolve/",
        disputes.DisputeResolveView.as_view(),
        name="api-dispute-resolve",
    ),
    path("adjustments/", disputes.AdjustmentsView.as_view(), name="api-adjustments"),
    path("approvals/", periods.ApprovalsView.as_view(), name="api-approvals"),
    path(
        "approvals/<uuid:approval_id>/decide/",
        periods.ApprovalDecideView.as_view(),
        name="api-approval-decide",
    ),
    path("rate-cards/", masters.RateCardsView.as_view(), name="api-rate-cards"),
    path("policies/", masters.PoliciesView.as_view(), name="api-policies"),
    path("calibrations/", masters.CalibrationsView.as_view(), name="api-calibrations"),
]
