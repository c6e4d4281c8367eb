"""Load tests that calibrations are fitted from: all of them are kept (domain.md section 7)."""

from __future__ import annotations

from django.db import models


class LoadTestRun(models.Model):
    """One run of a named load test. Append-only: another measurement is another run."""

    id = models.BigAutoField(primary_key=True)
    load_test = models.CharField(max_length=200)
    run = models.CharField(max_length=100)
    model = models.CharField(max_length=200)
    gpu_model = models.CharField(max_length=63)
    gpus_milli = models.BigIntegerField()
    duration_us = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    cached_input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField()
    gpu_us = models.BigIntegerField()
    concurrency = models.IntegerField(null=True)
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["load_test", "model", "gpu_model", "run"], name="load_test_run_once"
            )
        ]
