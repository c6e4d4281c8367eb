"""Requests to the shared services: measured one by one, or by the hour, with what preemption did to them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.calls import Call, draw_call, gpu_us_of
from ingest.core.demo.cast import SERVICES, Company
from ingest.core.demo.journal import GATEWAY, Journal, Json, api_key, engines_of, rfc3339, seconds
from ingest.core.demo.record import Preempted, Record, Stay
from ingest.core.demo.traffic_shapes import CALLERS, LAUNCH_FACTOR, MODELS, CallerPlan, ModelPlan
from ledger.core.periods import Span
from ledger.core.units import MS_PER_HOUR, MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Cell:
    """One caller in one hour: its share of the traffic."""

    hour_ms: int
    caller: CallerPlan
    weight: float


@dataclass
class Traffic:
    """All calls of one month. Uses the stays of the services' replicas, so run it after the schedulers."""

    calendar: Calendar
    company: Company
    journal: Journal
    record: Record
    launch_day: int
    seed: str
    requests: int
    _clusters: dict[str, str] = field(default_factory=dict)
    _serial: int = 0

    def write(self) -> None:
        self._clusters = {pool.slug: pool.cluster for pool in self.company.pools}
        for plan in MODELS:
            random = Random(f"{self.seed}/traffic/{plan.service}")
            cells = self._cells(plan)
            replicas = sorted(
                (s for s in self.record.stays if s.holder == plan.service), key=lambda s: s.start_ms
            )
            self._write_hourly(plan, cells, replicas, random)
            self._write_calls(plan, cells, replicas, random)
        random = Random(f"{self.seed}/traffic/voided")
        for preempted in self.record.preempted:
            self._void_requests(preempted, random)
        self._write_refusals(Random(f"{self.seed}/traffic/refused"))

    # Who calls when

    def _cells(self, plan: ModelPlan) -> list[Cell]:
        random = Random(f"{self.seed}/cells/{plan.service}")
        tenants = {tenant.slug: tenant for tenant in self.company.tenants}
        cells = []
        for caller in CALLERS:
            tenant = tenants.get(caller.tenant)
            if caller.service != plan.service or tenant is None:
                continue
            joins_ms = self.calendar.at(tenant.joins_on, 10) if tenant.joins_on > 1 else 0
            leaves_ms = (
                self.calendar.at(tenant.leaves_on, 18) if tenant.leaves_on else self.calendar.span.end_ms
            )
            for hour_ms in self.calendar.hours():
                if joins_ms <= hour_ms and hour_ms + MS_PER_HOUR <= leaves_ms:
                    busy = self.calendar.busyness(caller.rhythm, hour_ms + MS_PER_HOUR // 2)
                    weight = caller.weight * busy * random.uniform(0.85, 1.15)
                    cells.append(Cell(hour_ms, caller, weight * self._launch_factor(caller, hour_ms)))
        return cells

    def _launch_factor(self, caller: CallerPlan, hour_ms: int) -> int:
        is_crowd = caller.tenant == "assistant" and self._is_launch(hour_ms)
        return LAUNCH_FACTOR if is_crowd else 1

    @cached_property
    def _launch(self) -> Span:
        return Span(self.calendar.at(self.launch_day, 10), self.calendar.at(self.launch_day, 14))

    @cached_property
    def _drifts_from_ms(self) -> int:
        return self.calendar.at(15, 0)

    def _is_launch(self, instant_ms: int) -> bool:
        return self._launch.start_ms <= instant_ms < self._launch.end_ms

    def _drift(self, plan: ModelPlan, instant_ms: int) -> float:
        """New prompts in the month's second half make calls cost more than the load test said; for qwen3-235b by
        more than its calibration tolerates."""
        return 1 + (plan.drift_percent if instant_ms >= self._drifts_from_ms else 1) / 100

    # Short calls, which the gateway sums up by the hour

    def _write_hourly(self, plan: ModelPlan, cells: list[Cell], replicas: list[Stay], random: Random) -> None:
        occupied = occupied_gpu_us(replicas)
        by_hour: dict[int, list[Cell]] = {}
        for cell in cells:
            by_hour.setdefault(cell.hour_ms, []).append(cell)
        busiest = max((sum(cell.weight for cell in hour) for hour in by_hour.values()), default=1.0)
        for hour_ms, hour in by_hour.items():
            load = sum(cell.weight for cell in hour)
            # Replicas follow the load, so a quiet hour is less empty than its traffic says.
            used_us = occupied.get(hour_ms, 0) * plan.busy_percent / 100 * (0.45 + 0.55 * load / busiest)
            for cell in hour:
                self._write_usage(plan, cell, used_us * cell.weight / load, random)

    def _write_usage(self, plan: ModelPlan, cell: Cell, gpu_us: float, random: Random) -> None:
        caller = cell.caller
        cached = caller.input_tokens * caller.cached_percent // 100
        each_us = gpu_us_of(plan, caller.input_tokens - cached, cached, caller.output_tokens)
        requests = int(gpu_us / each_us * random.uniform(0.94, 1.0) / self._drift(plan, cell.hour_ms))
        if not requests:
            return
        output = int(requests * caller.output_tokens * random.uniform(0.95, 1.05))
        ends_ms = cell.hour_ms + MS_PER_HOUR
        data: Json = {
            "usage": f"{plan.service}/{caller.tenant}/{rfc3339(cell.hour_ms)}",
            **called_by(caller.tenant),
            "pool": SERVICES[plan.service],
            "service": plan.service,
            "model": plan.model,
            "starts_at": rfc3339(cell.hour_ms),
            "ends_at": rfc3339(ends_ms),
            "requests": requests,
            "input_tokens": requests * caller.input_tokens,
            "cached_input_tokens": requests * cached,
            "output_tokens": output,
            "concurrency_seconds": seconds(output * plan.ms_per_output_token * 1000),
        }
        if caller.reasoning_percent:
            data["reasoning_tokens"] = output * caller.reasoning_percent // 100
        if plan.has_gpu_seconds:
            data["gpu_seconds"] = seconds(int(requests * each_us * self._drift(plan, cell.hour_ms)))
        self.journal.write(GATEWAY, "usage", ends_ms, data)

    # Agent calls, reported one by one

    def _write_calls(self, plan: ModelPlan, cells: list[Cell], replicas: list[Stay], random: Random) -> None:
        if not cells:
            return
        count = self.requests * (3 if plan.has_gpu_seconds else 2) // 5
        ends = sorted(replicas, key=lambda stay: stay.end_ms)
        for cell in random.choices(cells, [cell.weight for cell in cells], k=count):
            finished_ms = cell.hour_ms + random.randrange(MS_PER_HOUR)
            drift = self._drift(plan, finished_ms)
            call = draw_call(cell.caller, plan, self._request_id(plan), finished_ms, drift, random)
            call.duration_ms = min(call.duration_ms, finished_ms - self.calendar.span.start_ms)
            call.workload = _replica_of(call, ends, random)
            pressed = 0.02 if self._is_launch(finished_ms) else 0.0015
            extra = self._press(call, random) if call.outcome == "ok" and random.random() < pressed else {}
            self._write_call(call, extra)

    def _write_call(self, call: Call, extra: Json | None = None) -> None:
        data: Json = {
            "request": call.request,
            **called_by(call.caller.tenant),
            "pool": SERVICES[call.model.service],
            "service": call.model.service,
            "model": call.model.model,
            "started_at": rfc3339(call.started_ms),
            "input_tokens": call.input_tokens,
            "cached_input_tokens": call.cached_input_tokens,
            "output_tokens": call.output_tokens,
            "outcome": call.outcome,
            **(extra or {}),
        }
        if call.workload:
            data["workload"] = call.workload
        if call.caller.reasoning_percent:
            data["reasoning_tokens"] = call.reasoning_tokens
        if call.model.has_gpu_seconds:
            data["gpu_seconds"] = seconds(call.gpu_us)
        if call.attempt > 1:
            data["attempt"] = call.attempt
        self.journal.write(GATEWAY, "request", call.finished_ms, data)

    def _request_id(self, plan: ModelPlan) -> str:
        self._serial += 1
        return f"{plan.service}-{self.journal.month}-{self._serial:07d}"

    # What preemption does to requests

    def _press(self, call: Call, random: Random) -> Json:
        """The engine runs out of KV cache and stops this request; it prefills again seconds later."""
        stopped_ms = call.started_ms + int(call.duration_ms * random.uniform(0.2, 0.7))
        resumed_ms = min(stopped_ms + random.randrange(400, 6000), call.finished_ms - 1)
        if resumed_ms <= stopped_ms:
            return {}
        done = call.output_tokens * (stopped_ms - call.started_ms) // max(call.duration_ms, 1)
        context = call.input_tokens + done
        again = context - call.cached_input_tokens
        again_us = gpu_us_of(call.model, again, 0, 0)
        pool = SERVICES[call.model.service]
        preemption = f"{call.request}/{rfc3339(stopped_ms)}"
        source = engines_of(self._clusters[pool])
        self.journal.write(
            source,
            "preemption",
            stopped_ms,
            {
                "preemption": preemption,
                "victim": {"request": call.request, **called_by(call.caller.tenant)},
                "preemptor_source": "none",
                "pool": pool,
                "gpus": 0,
                "cause": "kv_cache_pressure",
                "admitted_at": rfc3339(call.started_ms),
                "released_at": rfc3339(stopped_ms),
                "disposition": "requeued",
                "requests_in_flight": random.randrange(180, 420),
                "requests_voided": 1,
                "output_tokens_lost": 0,
                "context_tokens": context,
                "cached_prefix_tokens": call.cached_input_tokens,
            },
        )
        resume: Json = {"preemption": preemption, "pool": pool, "recompute_prefill_tokens": again}
        extra: Json = {"preemptions": 1, "recomputed_tokens": again}
        if call.model.has_gpu_seconds:
            resume["recompute_gpu_seconds"] = extra["recompute_gpu_seconds"] = seconds(again_us)
        self.journal.write(source, "resume", resumed_ms, resume)
        return extra

    def _void_requests(self, preempted: Preempted, random: Random) -> None:
        """A replica that goes takes its running requests with it; of a shared service they are known one by one."""
        if not preempted.victim.is_serving:
            return
        voided = random.randrange(5, 19)
        lost, context, cached = voided * random.randrange(150, 420), voided * 2900, voided * 1216
        if preempted.holder in SERVICES:
            calls = self._voided_calls(preempted, voided, random)
            lost = sum(call.output_tokens for call in calls)
            context = sum(call.input_tokens + call.output_tokens for call in calls)
            cached = sum(call.cached_input_tokens for call in calls)
        preempted.data.update(
            requests_in_flight=voided + random.randrange(3),
            requests_voided=voided,
            output_tokens_lost=lost,
            context_tokens=context,
            cached_prefix_tokens=cached,
        )

    def _voided_calls(self, preempted: Preempted, count: int, random: Random) -> list[Call]:
        plan = next(model for model in MODELS if model.service == preempted.holder)
        present = {
            tenant.slug for tenant in self.company.tenants if not tenant.leaves_on and tenant.joins_on == 1
        }
        callers = [c for c in CALLERS if c.service == plan.service and c.tenant in present]
        calls = []
        for caller in random.choices(callers, [c.weight for c in callers], k=count):
            stopped_ms = random.randint(preempted.decided_ms, preempted.released_ms)
            drift = self._drift(plan, stopped_ms)
            call = draw_call(caller, plan, self._request_id(plan), stopped_ms, drift, random)
            call.outcome, call.workload = "preempted", preempted.workload
            call.duration_ms = min(call.duration_ms, stopped_ms - self.calendar.span.start_ms)
            self._write_call(call)
            again_ms = stopped_ms + call.duration_ms + random.randrange(2000, 40_000)
            again = draw_call(caller, plan, call.request, again_ms, drift, random)
            again.attempt, again.duration_ms = 2, min(again.duration_ms, again_ms - stopped_ms)
            if again_ms < self.calendar.span.end_ms:
                self._write_call(again)
            calls.append(call)
        return calls

    # Refusals

    def _write_refusals(self, random: Random) -> None:
        """The gateway's own brake: a trickle on any day, a flood for a few hours of the launch."""
        for minute in range(0, 4 * 60, 2):
            count = int(380 * (1 - minute / 260) * random.uniform(0.7, 1.3))
            self._refuse(
                "assistant", self._launch.start_ms + minute * MS_PER_MINUTE, count, "rate_limit", random
            )
        for caller, layer in (("research", "rate_limit"), ("code", "admission"), ("mobile", "budget")):
            tenant = next((t for t in self.company.tenants if t.slug == caller), None)
            for day in range(1, (tenant.leaves_on or self.calendar.days) + 1 if tenant else 1):
                time_ms = self.calendar.at(day, random.randrange(9, 18), random.randrange(60))
                self._refuse(caller, time_ms, random.randrange(1, 30), layer, random)

    def _refuse(self, tenant: str, time_ms: int, count: int, layer: str, random: Random) -> None:
        plan = MODELS[0]
        data: Json = {
            **called_by(tenant),
            "layer": layer,
            "reason": {"rate_limit": "tokens per minute", "admission": "queue full"}.get(
                layer, "month's budget"
            ),
            "status": 503 if layer == "admission" else 429,
            "count": count,
            "requested_tokens": count * random.randrange(2000, 4000),
            "pool": SERVICES[plan.service],
            "model": plan.model,
            "origin": "gateway",
        }
        if layer == "rate_limit":
            data["retry_after_seconds"] = random.choice((5, 15, 30))
        self.journal.write(GATEWAY, "rejection", time_ms + random.randrange(60_000), data)


def called_by(tenant: str) -> Json:
    return {"identity": {"kind": "api_key_hash", "value": api_key(tenant)}}


def occupied_gpu_us(replicas: list[Stay]) -> dict[int, int]:
    """GPU time of a service's replicas per UTC hour (by its start)."""
    occupied: dict[int, int] = {}
    for stay in replicas:
        hour_ms = stay.start_ms // MS_PER_HOUR * MS_PER_HOUR
        while hour_ms < stay.end_ms:
            inside_ms = min(hour_ms + MS_PER_HOUR, stay.end_ms) - max(hour_ms, stay.start_ms)
            occupied[hour_ms] = occupied.get(hour_ms, 0) + stay.milli_gpus * inside_ms
            hour_ms += MS_PER_HOUR
    return occupied


def _replica_of(call: Call, replicas_by_end: list[Stay], random: Random) -> str:
    """Any replica that was up for the whole call; '' where none was."""
    first = bisect_left(replicas_by_end, call.finished_ms, key=lambda stay: stay.end_ms)
    nearby = replicas_by_end[first : first + 12]
    up = [stay for stay in nearby if stay.start_ms <= call.started_ms and call.finished_ms < stay.end_ms]
    return random.choice(up).workload if up else ""
