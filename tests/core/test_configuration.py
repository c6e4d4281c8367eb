"""The configuration file: what is refused says where."""

import pytest

from billing.core.configuration import ConfigurationError, decimal_micro, duration_s, parse

POOL = '[[pool]]\nslug="p"\ncluster="c"\ngpu_model="H100"\n'
CARD = '[[rate_card]]\nname="x"\nvalid_from="2020-01-01T00:00:00Z"\n[[rate_card.gpu_hour]]\npool="p"\n'


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        ("[ledger]\nfoo=1", "ledger.foo", "unknown key"),
        ("[[ledgers]]", "ledgers", "unknown key"),
        (
            "[[tenant]]\nslug='a'\nidentities=[{kind='x', valu='y'}]",
            "tenant[0].identities[0].valu",
            "unknown key",
        ),
        ("[[tenant]]\nslug='A b'", "tenant[0].slug", "not a usable slug"),
        ("[[tenant]]\nslug='platform'", "tenant[0].slug", "not a usable slug"),
        ("[[tenant]]\nslug='a'\n[[tenant]]\nslug='a'", "tenant[1].slug", "named twice"),
        ("[[tenant]]\nslug='a'\n[[service]]\nslug='a'", "service", "share one space"),
        (POOL + CARD + 'on_demand="2,00"', "rate_card[0].gpu_hour[0].on_demand", "not a decimal number"),
        (POOL + CARD + 'on_demand="-1"', "rate_card[0].gpu_hour[0].on_demand", "at least 0"),
        (POOL + CARD + 'on_demand="nan"', "rate_card[0].gpu_hour[0].on_demand", "at least 0"),
        (POOL + CARD + 'on_demand="0.0000001"', "rate_card[0].gpu_hour[0].on_demand", "6 decimal places"),
        (POOL + CARD + "on_demand=2.0", "rate_card[0].gpu_hour[0].on_demand", "should be str"),
        ("[[policy]]\nvalid_from=2020-01-01T00:00:00", "policy[0].valid_from", "offset"),
        (
            "[[policy]]\nvalid_from=2020-01-01T00:00:00Z\nmin_confidence='2'",
            "policy[0].min_confidence",
            "0 and 1",
        ),
        ("[ledger]\nbilling_time_zone='Mars/Olympus'", "ledger.billing_time_zone", "IANA"),
        ("[ledger]\ncurrency='usd'", "ledger.currency", "ISO 4217"),
        ("[[source]]\nname='s'\nuri='/s'\nsilence_after='2 hours'", "source[0].silence_after", "duration"),
        (
            "[[tenant]]\nslug='a'\nidentities=[{kind='k8s_namespac', value='x'}]",
            "tenant[0].identities[0].kind",
            "not a kind of identity",
        ),
        (
            "[[source]]\nname='s'\nuri='/s'\nadapter='kueu'",
            "source[0].adapter",
            "no adapter is called 'kueu'",
        ),
        ("[[tenant]\n", "", "not TOML"),
    ],
)
def test_refusals_name_the_key(text: str, path: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(path)
    assert problem in message
    assert "\n" not in message


def test_decimals_are_exact() -> None:
    assert decimal_micro("3.3333", "") == 3_333_300
    assert decimal_micro("1e3", "") == 1_000_000_000


def test_durations() -> None:
    assert [duration_s(text, "") for text in ("2h", "30m", "45s", "1d", "")] == [7200, 1800, 45, 86_400, None]
