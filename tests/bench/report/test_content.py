"""What a result file holds."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from helpers import results

from pdla.bench.measure.case import Case
from pdla.bench.measure.product import predict
from pdla.bench.report import content
from pdla.bench.report.content import SCHEMA, entry


def test_the_schema_refuses_a_row_without_checks(tmp_path):
    schema = json.loads(SCHEMA.read_text())
    row = entry(replace(predict(Case(4, 4, 4, algorithm="gather"), 1), checks=("exact (NumPy)",)))
    only_row = {**schema, **schema["$defs"]["row"]}
    jsonschema.validate(json.loads(json.dumps(row)), only_row)
    del row["checks"]
    with pytest.raises(jsonschema.ValidationError, match="checks"):
        jsonschema.validate(json.loads(json.dumps(row)), only_row)


def test_files_obey_the_schema(files):
    schema = json.loads(content.SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for file in files:
        found = json.loads(Path(file).read_text())
        jsonschema.validate(found, schema)
    found["rows"][0]["split"]["timeline"]["spans"][0][0] = "rank 0"
    with pytest.raises(jsonschema.ValidationError, match="rank 0"):
        jsonschema.validate(found, schema)
    found["predicted_on"]["flops"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema)


def test_rows_are_read_back(tmp_path):
    (made,) = results.rows((2, 2), {"cannon": (0.5, 0.25)})
    there_and_back = content.row(json.loads(json.dumps(content.entry(made))))
    assert there_and_back == replace(made, explained="")
