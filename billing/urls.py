"""Pages of billing."""

from django.urls import URLPattern, URLResolver, path

from billing.views.alerts import AlertPage, AlertsPage
from billing.views.api_tokens import TokenPage
from billing.views.audit import AuditPage
from billing.views.budgets import BudgetsPage
from billing.views.calibration import CalibrationPage
from billing.views.closing import ClosingPage
from billing.views.cluster import ClusterPage
from billing.views.demand import DemandPage
from billing.views.disputes import DisputePage, StatementLinePage
from billing.views.effect import EffectPage
from billing.views.lending import LendingPage
from billing.views.months import Home, MonthFile, MonthPage, MonthsPage
from billing.views.people import UserPage, UsersPage
from billing.views.plan import PlanPage
from billing.views.platform import PlatformPage
from billing.views.pools import PoolPage
from billing.views.preemptions import MonthPreemptionsPage, PreemptionPage
from billing.views.quota import QuotaPage
from billing.views.search import SearchPage
from billing.views.statements import StatementFile, StatementPage, StatementPdf
from billing.views.terms import RatesPage, SettingsPage
from billing.views.verification import VerificationPage
from billing.views.workloads import WorkloadPage

STATEMENT = "months/<str:month>/statements/<str:tenant>/"

app_name = "billing"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", Home.as_view(), name="home"),
    path("months/", MonthsPage.as_view(), name="months"),
    path("months/<str:month>/", MonthPage.as_view(), name="month"),
    path("months/<str:month>/<str:name>.csv", MonthFile.as_view(), name="month-file"),
    path("months/<str:month>/closing/", ClosingPage.as_view(), name="month-closing"),
    path("months/<str:month>/platform/", PlatformPage.as_view(), name="month-platform"),
    path("months/<str:month>/lending/", LendingPage.as_view(), name="month-lending"),
    path("months/<str:month>/preemptions/", MonthPreemptionsPage.as_view(), name="month-preemptions"),
    path(STATEMENT, StatementPage.as_view(), name="statement"),
    path(f"{STATEMENT}<str:name>.csv", StatementFile.as_view(), name="statement-file"),
    path(f"{STATEMENT}statement.pdf", StatementPdf.as_view(), name="statement-pdf"),
    path(f"{STATEMENT}lines/<int:position>/", StatementLinePage.as_view(), name="statement-line"),
    path(f"{STATEMENT}disputes/<uuid:dispute_id>/", DisputePage.as_view(), name="statement-dispute"),
    path("preemptions/<uuid:preemption_id>/", PreemptionPage.as_view(), name="preemption"),
    # A workload's id is whatever its scheduler made it, slashes included.
    path("workloads/<str:pool>/<path:workload>/", WorkloadPage.as_view(), name="workload"),
    path("alerts/", AlertsPage.as_view(), name="alerts"),
    path("alerts/<uuid:alert_id>/", AlertPage.as_view(), name="alert"),
    path("cluster/", ClusterPage.as_view(), name="cluster"),
    path("pools/<str:pool>/", PoolPage.as_view(), name="pool"),
    path("quota/", QuotaPage.as_view(), name="quota"),
    path("demand/", DemandPage.as_view(), name="demand"),
    path("budgets/", BudgetsPage.as_view(), name="budgets"),
    path("plan/", PlanPage.as_view(), name="plan"),
    path("audit/", AuditPage.as_view(), name="audit"),
    path("audit/verifications/<int:run_id>/", VerificationPage.as_view(), name="verification"),
    path("settings/effect/", EffectPage.as_view(), name="effect"),
    path("settings/users/", UsersPage.as_view(), name="users"),
    path("settings/users/<int:user_id>/", UserPage.as_view(), name="user"),
    path("settings/tokens/<int:token_id>/", TokenPage.as_view(), name="token"),
    path("rates/", RatesPage.as_view(), name="rates"),
    path("settings/", SettingsPage.as_view(), name="settings"),
    path("calibration/", CalibrationPage.as_view(), name="calibration"),
    path("search/", SearchPage.as_view(), name="search"),
]
