"""No form of a password stays in what a command says."""

from __future__ import annotations

import pytest

from pgoutput_fast.cli.passwords import passwords_in, without_passwords


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--dsn", "host=db password=open-sesame dbname=shop"], {}),
        (["--dsn", r"password = 'open\-sesame'"], {}),
        (["--dsn=postgresql://me:open-sesame@db/shop"], {}),
        (["postgresql://me:open%2Dsesame@db/shop"], {}),
        (["postgresql://db/shop?user=me&password=open-sesame&sslmode=disable"], {}),
        ([], {"PGPASSWORD": "open-sesame"}),
        ([], {"PGOUTPUT_FAST_DSN": "PASSWORD=open-sesame"}),
    ],
)
def test_every_form_is_found(arguments: list[str], environment: dict[str, str]) -> None:
    found = passwords_in(arguments, environment)
    assert without_passwords("cannot log in: open-sesame!", found) == "cannot log in: ***!"


def test_other_texts_stay() -> None:
    found = passwords_in(["--dsn", "host=db dbname=shop", "postgresql://me@db:5433/shop"], {"PGUSER": "me"})
    assert found == set()
