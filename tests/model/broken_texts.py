"""Texts under ``active_version`` that are no rendezvous documents, for the properties and for the examples."""

from __future__ import annotations

FINAL = '"status":"final","version":"1","participants":[0],"keep_alives":["k"],"num_workers_waiting":0'

BROKEN = {
    "nothing": "",
    "no object": "[]",
    "no status": "{}",
    "unknown status": '{"status":"ready"}',
    "status in capitals": '{"status":"Setup"}',
    "status is a list": '{"status":["setup"]}',
    "half a document": '{"status":"setup"',
    "two documents": '{"status":"setup"}{"status":"setup"}',
    "joinable without version": '{"status":"joinable","participants":[]}',
    "joinable without participants": '{"status":"joinable","version":"1"}',
    "frozen without keep-alives": '{"status":"frozen","version":"1","participants":[0]}',
    "final without a count": '{"status":"final","version":"1","participants":[0],"keep_alives":["k"]}',
    "version is a number": '{"status":"joinable","version":1,"participants":[]}',
    "version in other digits": '{"status":"joinable","version":"\\u0663","participants":[]}',
    "ranks with a hole": '{"status":"joinable","version":"1","participants":[0,2]}',
    "ranks out of order": '{"status":"joinable","version":"1","participants":[1,0]}',
    "a rank twice": '{"status":"joinable","version":"1","participants":[0,0]}',
    "rank is true": '{"status":"joinable","version":"1","participants":[false,true]}',
    "rank is a float": '{"status":"joinable","version":"1","participants":[0.0]}',
    "keep-alive is a number": "{" + FINAL.replace('["k"]', "[0]") + "}",
    "count is negative": "{" + FINAL.replace(":0", ":-1") + "}",
    "count is true": "{" + FINAL.replace('waiting":0', 'waiting":true') + "}",
    "owner of no rank": "{" + FINAL + ',"owners":{"x":"a"}}',
    "owner is a number": "{" + FINAL + ',"owners":{"0":1}}',
    "owners is a list": "{" + FINAL + ',"owners":["a"]}',
    "bounds of one": "{" + FINAL + ',"bounds":[1]}',
    "bounds upside down": "{" + FINAL + ',"bounds":[3,2]}',
    "bounds of none": "{" + FINAL + ',"bounds":[0,2]}',
    "bounds are text": "{" + FINAL + ',"bounds":["1","2"]}',
    "count beyond all counts": "{" + FINAL.replace('waiting":0', 'waiting":' + "9" * 19) + "}",
    "owner that is no part of a key": "{" + FINAL + ',"owners":{"0":"a/../b"}}',
    "waiter that is no part of a key": "{" + FINAL + ',"waiters":[""]}',
    "waiter is a number": "{" + FINAL + ',"waiters":[1]}',
    "creator is a number": '{"status":"setup","creator":1}',
    "version beyond int's reach": '{"status":"joinable","version":"' + "9" * 5000 + '","participants":[]}',
    "nested beyond any reader": '{"status":"setup","x":' + "[" * 100_000 + "]" * 100_000 + "}",
}
"""Texts that no protocol run can produce, by what is wrong with them."""
