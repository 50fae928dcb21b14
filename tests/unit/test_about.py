"""What ``/v1/config`` shows of the settings."""

import pytest

from control.api.about import without_secrets


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("https://u:s3cret@h:1/hook/s3cret?key=s3cret", "https://h:1/…"),
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("busy: see http://wiki/weir", "busy: see http://wiki/weir"),
        ("http://[wiki", "…"),
    ],
)
def test_of_a_url_only_where_it_leads_is_shown_and_any_text_can_be(
    setting: str, shown: str
) -> None:
    assert without_secrets({"a": [setting]}) == {"a": [shown]}
