"""What it costs, in plain Python: from levels to a bill, every division and every rounding of the product.

Sections are those of domain.md. A month goes through these modules from top to bottom:

1. **Who had which GPU** (section 4). `allocation_at` is the rule for one instant, line by line: begin there.
   `allocation` does it for a month of slots at once, with `allocation_levels` (what each holds, as step functions),
   `allocation_shares` (stretches where holders contend), `allocation_within` and `allocation_cells` (a holder's time
   among its own workloads), `reservations` (what became of each reservation).
2. **Shared services** (section 5): `services_split` over the tenants that were served.
3. **Preemption** (section 6): `preemption_merge` (several reports, one record), `preemption` (drain, waiting, lost,
   recompute), `preemption_workload`, `preemption_standing` and `pool_moments`, `pool_instants` (where victim and pool
   stood), `preemption_charges` (who bears it), `episodes` (did it pay),
   `released` (how long nobody occupied what was freed).
4. **Tokens** (section 7): `contracts`, `contract_reservations`, `calibration`, `load_tests`.
5. **Money** (section 8): `rating` with `rating_prices`, `rating_lines`, `rating_credits`, `rating_idle`;
   `cost_recovery` for the other mode.
6. **The books** (section 10): `posting` (lines to what should stand posted), `adjustments` (what changed about closed
   months), `checklist`, `statement` (printed amounts and the chain), `canonical_json`, `journal`.
7. **Proofs** (section 11): `invariants`; `reconciliation` against what others counted.

Looking ahead and around (section 9): `shortage`, `demand`, `quota`, `quota_drift`, `budgets`, `forecast`, `plan`.
Alerts: `alerts`, `alert_episodes`, `alert_history`, `alert_messages`, `destinations`.
What readers see: `bridge`, `inside`, `matrix`, `line_text`, `sentences`; FOCUS: `focus`, `focus_columns`,
`focus_periods`. What is configured: `configuration`.
"""
