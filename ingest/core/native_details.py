"""What adapters say of native records that they refuse, as sentences of declared codes."""

from __future__ import annotations

from ledger.core.sentences import declare


def _(text: str) -> str:
    """Marks a text for the catalogue of translations; pages look it up there."""
    return text


OF_ADAPTERS = declare(
    {
        # Kubernetes (kubernetes, kube_events, kube_pods, kube_state_metrics, ksm_totals, pods, quotas).
        "native_no_object": _("not a Kubernetes object, list or watch event"),
        "native_no_metadata": _("not a Kubernetes object, list or watch event: no kind or no metadata"),
        "native_watch_ended": _("the API server ended the watch: %(why)s"),
        "native_watch_without_metadata": _("the watch event's object has no metadata"),
        "native_item_without_metadata": _("an item of the list is not an object with metadata"),
        "native_lacks": _("%(place)s has no %(name)s"),
        "native_not_a_string": _("%(name)s is not a string"),
        "native_not_an_object": _("%(name)s is not an object"),
        "native_not_objects": _("%(name)s is not a list of objects"),
        "native_event_without_time": _("the Event carries no time at all"),
        "native_event_without_pod": _("the Event does not say the UID of the pod it is about"),
        "native_unseen_pod": _(
            "the Event names Pod %(name)s, which was never seen, so its GPUs and pool are unknown"
        ),
        "native_unseen_workload": _(
            "the Event names Workload %(name)s, which was never seen, so its GPUs and pool are unknown"
        ),
        "native_event_or_pod": _("%(kind)s is neither an Event nor a Pod"),
        "native_pod_or_node": _("%(kind)s is neither a Pod nor a Node"),
        "native_quota_or_event": _("%(kind)s is neither a ResourceQuota nor an Event"),
        "native_of_kueue": _("%(kind)s is not an object of Kueue"),
        "native_of_kai": _("%(kind)s is not an object of KAI"),
        "native_of_volcano": _("%(kind)s is not an object of Volcano"),
        "native_of_koordinator": _("%(kind)s is not an object of Koordinator's quotas"),
        "native_of_elastic_quotas": _("%(kind)s is not an object of elastic quotas"),
        "native_tree_without_root": _("the ElasticQuotaTree has no spec.root"),
        "native_unit_left": _("the QueueUnit left its queue at a time the record lacks"),
        "native_node_changed": _("the Node changed at a time that the record lacks"),
        "native_pod_gave_back": _("the Pod gave back its GPUs at a time that the record lacks"),
        "native_quota_since": _("%(name)s says how much but not since when; list it with managedFields"),
        "native_annotation_not_a_list": _("annotation %(name)s is not a JSON resource list"),
        "native_of_pod": _("pod %(name)s: %(problem)s"),
        "native_of_node": _(
            "node %(name)s: %(problem)s; it counts from the first sample after that is mended"
        ),
        # Sizes of GPUs (gpu_resources).
        "native_part_by_memory": _(
            "%(name)s asks for part of a GPU by memory; say the memory of a whole one in options.%(option)s"
        ),
        "native_part_of_unknown": _(
            "annotation gpu-memory asks for part of a GPU whose size is not recorded"
        ),
        "native_time_sliced": _(
            "%(name)s is a time-sliced replica; say its size in options.gpu_resources, such as %(example)s"
        ),
        "native_size": _("%(name)s: say its size in options.gpu_resources, in milli-GPU"),
        # Schedulers (kueue, kueue_*, kai, volcano_queues).
        "native_deleted": _(
            "the Workload was deleted while it held or wanted quota, at a time the record lacks"
        ),
        "native_without_victim": _("a PreemptedWorkload event without the victim's UID: %(value)s"),
        "native_preemption_unreadable": _("the message of a preemption cannot be read: %(value)s"),
        "native_eviction_unreadable": _("the message of an eviction cannot be read: %(value)s"),
        "native_never_admitted": _(
            "%(name)s was preempted, but its admission was never seen and its queue %(queue)s maps to no "
            "pool, or its pod templates ask for nothing"
        ),
        "native_shrank": _(
            "reclaimablePods shrank the workload at a time this copy does not tell; list it with "
            "managedFields"
        ),
        "native_deactivated": _(
            "the Workload was deactivated while it waited, at a time this copy does not tell; list it "
            "with managedFields"
        ),
        "native_waits": _("%(name)s has not been admitted since %(since)s; %(problem)s"),
        "native_waits_nowhere": _(
            "it waits for %(amounts)s, but its queue %(queue)s maps to no pool: map the ClusterQueue, the"
            " LocalQueue or the namespace, or switch pending off for this source"
        ),
        "native_cluster_queue_since": _(
            "a ClusterQueue says its quota but not since when; list it with managedFields"
        ),
        "native_queue_since": _("a Queue says its quota but not since when; list it with managedFields"),
        "native_admission_empty": _("QuotaReserved is True but status.admission is empty"),
        # Slurm (slurm_*, slurmctld_log).
        "native_typed_gpus": _(
            "only typed gres/gpu entries: add gres/gpu to AccountingStorageTRES, or set options.typed_gpus"
        ),
        "native_delimiter": _(
            "%(fields)s fields where the header has %(columns)s: a text holds the delimiter. Put free "
            "text last, choose another --delimiter, or use --json"
        ),
        "native_newline": _("fewer fields than the header: a text holds a newline"),
        "native_no_header": _("no header line and no options.fields: what are the columns?"),
        "native_raw_job": _("%(value)s is not a raw job id: ask for the column JobIDRaw"),
        "native_needs_times": _("the columns State, Start and End are needed"),
        "native_needs_tres": _("the column AllocTRES is needed; without it there are no GPUs"),
        "native_runs_of_job": _("neither SLUID nor DBIndex nor Submit: runs of one job cannot be told apart"),
        "native_runs_of_json": _("neither sluid nor db_index nor a submission time tells its runs apart"),
        "native_tres_count": _("%(value)s in AllocTRES is not a count"),
        "native_not_sacct": _("not a job of sacct --json: there is no job_id"),
        "native_fields": _("%(fields)s fields where the header has %(columns)s"),
        "native_not_reported": _(
            "Allocated + Down + PLND Down + Idle + Planned is not Reported: rounded, or another unit"
        ),
        "native_column_missing": _("the column %(name)s is missing"),
        "native_no_amounts": _("totals in %(unit)s are no amounts: use -t Seconds"),
        "native_no_report": _("not a report of utilization: no Reported, Used or reservation columns"),
        "native_not_in_zone": _("%(value)s does not exist in %(zone)s: is time_zone the zone of the client?"),
        "native_not_a_duration": _("%(value)s is not a duration"),
        "native_not_a_time": _("%(value)s is not a time: %(problem)s"),
        "native_slurm_wording": _("a line about a preemption in words that no known version of Slurm writes"),
        "native_log_time": _("%(value)s: set LogTimeFormat=iso8601_ms (or rfc5424_ms)"),
        "native_no_run": _("no run of job %(name)s around this line in accounting: its GPUs are unknown"),
        # Metrics (prometheus, counters, engine_counters, queue_metrics, dcgm).
        "native_counter_below_0": _("counter %(name)s is %(value)s, below 0"),
        "native_counter_not_whole": _("counter %(name)s is %(value)s, not a whole number"),
        "native_series_without_host": _("a DCGM series without UUID or Hostname"),
        "native_not_a_pod": _("%(value)s is not the name of a Pod"),
        "native_counted_hour": _("not a counted hour: %(problem)s"),
        "native_no_exposition": _("not a line of a Prometheus exposition"),
        "native_nameless_sample": _("the sample has no name"),
        "native_no_timestamp": _("no timestamp on the line and no '# scraped <instant>' line before it"),
        "native_prometheus_error": _("Prometheus answered with an error: %(problem)s"),
        "native_nameless_series": _("a series without __name__: query plain metrics, not an expression"),
        "native_labels": _("labels cannot be read from %(value)s"),
        "native_point": _("a point of a series is not [time, value]"),
        "native_without_label": _("%(name)s without the label %(label)s"),
        "native_set_aside": _("not what was set aside here: %(problem)s"),
        # Requests (gateways and engines).
        "native_json_object": _("an event is a JSON object"),
        "native_no_response_code": _("the line has no response code"),
        "native_dropped_reason": _("x-llm-d-request-dropped-reason %(value)s is not known"),
        "native_message_times": _("neither started_at nor finished_at beside the message"),
        "native_created": _("neither started_at, finished_at nor created"),
        "native_version": _("version %(value)s: fields are positional, only %(known)s is known"),
        "native_below_0": _("%(name)s is %(value)s, below 0"),
        "native_schema": _("schema %(value)s is not %(known)s"),
        "native_event_type": _("event_type %(value)s is not known"),
        "native_start_unknown": _("neither request_received_ms nor total_time_ms: the start is not known"),
        "native_field_not_json": _("%(name)s is not JSON: %(problem)s"),
        "native_ends_before": _("the request ends %(ms)s ms before it starts"),
        "native_cached_tokens": _(
            "%(cached)s cached and %(written)s cache-written tokens are more than the %(input)s input "
            "tokens they are part of"
        ),
        "native_reasoning_tokens": _(
            "%(reasoning)s reasoning tokens are more than the %(output)s output tokens"
        ),
        "native_finish_reason": _("finish_reason %(value)s is none of %(known)s"),
        "native_retractions": _("%(count)s retractions of one request"),
        "native_no_metrics": _(
            "no request_received_ts and request_finished_ts: start SGLang with --enable-metrics"
        ),
        "native_span_lacks": _("the span has no %(name)s"),
        "native_no_instant_first": _(
            "the line does not begin with an instant; collect the log with timestamps"
        ),
        "native_iteration": _("a line about an iteration that is not in the known wording"),
    }
)
