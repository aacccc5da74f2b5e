"""A reported.csv beside a table: right numbers, or the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.errors import FedbenchError
from fedbench.reports.table.reported import reported

HEAD = "table,row,group,column,value,std\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "reported.csv"


def test_values_of_the_tables_asked_for(file: Path) -> None:
    file.write_text(HEAD + "1,A,,x,1,\n\n1,A,G,x,2.5,0.5\n2,A,,x,9,\n", encoding="utf-8-sig")
    assert reported(file, ["1"], ["A"], ["x", "G/x"]) == {("A", "x"): (1.0, None), ("A", "G/x"): (2.5, 0.5)}
    assert reported(file, ["3"], [], []) == {}


def test_columns_in_any_order(file: Path) -> None:
    file.write_text("value,std,row,column,group,table\n1,,A,x,,1\n")
    assert reported(file, ["1"], ["A"], ["x"]) == {("A", "x"): (1.0, None)}


def test_no_file(file: Path) -> None:
    assert reported(file, ["1"], [], []) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "must have one column 'table'; its first line: table,row,group,column,value,std"),
        (b"table,row,group,column,value\n1,A,,x,1\n", "must have one column 'std'"),
        (HEAD.replace("row", "rows").encode(), "unknown column in reported.csv 'rows'; did you mean 'row'?"),
        (HEAD.replace("\n", ",std\n").encode(), "must have one column 'std'"),
        (HEAD.encode() + b"1,A,,x,1\n", "reported.csv, line 2 has 5 values, not 6"),
        (HEAD.encode() + b"1,A,,x,1,2,3\n", "reported.csv, line 2 has 7 values, not 6"),
        (HEAD.encode() + b"1,A,,x,,\n", "reported.csv, line 2: value must be a number, not ''"),
        (HEAD.encode() + b"1,A,,x,much,\n", "line 2: value must be a number, not 'much'"),
        (HEAD.encode() + b"1,A,,x,nan,\n", "line 2: value must be a number, not 'nan'"),
        (HEAD.encode() + b"1,A,,x,1,inf\n", "line 2: std must be a number, not 'inf'"),
        (HEAD.encode() + b"1,A,,x,1,-1\n", "line 2: std cannot be negative, as '-1' is"),
        (HEAD.encode() + b"1,A,,x,1,\n1,A,,x,2,\n", "line 3: A, x of table 1 has a value already"),
        (HEAD.encode() + b"1,B,,x,1,\n", "unknown row of table 1 in reported.csv, line 2 'B'; did you mean"),
        (HEAD.encode() + b"1,A,G,x,1,\n", "unknown column of table 1 in reported.csv, line 2 'G/x'"),
        (HEAD.encode() + b'1,A,,x,"1,\n', "is not valid CSV (unexpected end of data)"),
        (HEAD.encode() + b"1,\xff,,x,1,\n", "is not UTF-8 text"),
    ],
)
def test_wrong_lines(file: Path, text: bytes, says: str) -> None:
    file.write_bytes(text)
    with pytest.raises(FedbenchError) as caught:
        reported(file, ["1"], ["A", "Bb"], ["x"])
    assert says in str(caught.value).replace(str(file), "reported.csv")
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_of_that_name(file: Path) -> None:
    file.mkdir()
    with pytest.raises(FedbenchError, match="is a folder, where a CSV file should be"):
        reported(file, ["1"], [], [])
