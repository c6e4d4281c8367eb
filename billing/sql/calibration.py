"""Set-based reads behind calibrations. Static statements with bound parameters."""

# Per day of the billing zone (by the hour's start), model and GPU model: tokens and the GPU time measured for them, of
# hours in which every request stated both, with the calibration in force as the hour begins. Leans on usage_hour_when.
DAILY = """
SELECT (u.hour AT TIME ZONE %(zone)s)::date, model.name, pool.gpu_model, sum(u.input_tokens)::bigint,
       sum(u.cached_input_tokens)::bigint, sum(u.output_tokens)::bigint, sum(u.gpu_us)::bigint,
       c.valid_from, c.input_gpu_us_per_1k, c.cached_input_gpu_us_per_1k, c.output_gpu_us_per_1k, c.tolerance_ppm
FROM ledger_usagehour u
JOIN ledger_pool pool ON pool.id = u.pool_id
JOIN ledger_modelname model ON model.id = u.model_id
LEFT JOIN LATERAL (
    SELECT * FROM billing_calibration calibration
    WHERE calibration.model_id = u.model_id AND calibration.gpu_model = pool.gpu_model
      AND calibration.valid_from <= u.hour AND (calibration.ended_at IS NULL OR calibration.ended_at > u.hour)
    ORDER BY calibration.valid_from DESC LIMIT 1
) c ON true
WHERE u.hour >= %(from)s AND u.hour < %(to)s AND u.gpu_us > 0
  AND u.gpu_missing = 0 AND u.input_missing = 0 AND u.output_missing = 0
GROUP BY 1, 2, 3, 8, 9, 10, 11, 12
ORDER BY 2, 3, 1, 8
"""
