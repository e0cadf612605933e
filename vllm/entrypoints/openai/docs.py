"""/openapi.json and /docs, derived from the route table and the request structs when asked for."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from vllm.entrypoints.openai import protocol
from vllm.version import __version__

if TYPE_CHECKING:
    from vllm.entrypoints.openai.api_server import Row

_STYLE = "body{font:16px sans-serif;max-width:60em;margin:2em auto}td{padding:.2em 1em .2em 0}"


def openapi_document(rows: Sequence["Row"]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of these routes."""
    kinds = [getattr(protocol, row.request) for row in rows if row.request is not None]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for schema in schemas.values():
        for name in protocol.UNSUPPORTED:
            schema.get("properties", {}).pop(name, None)
    paths: dict[str, Any] = {}
    for row in rows:
        for method in row.methods:
            paths.setdefault(row.path, {})[method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {"title": "vllm", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: "Row") -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": row.summary,
        "responses": {"200": {"description": "OK"}, "default": {"description": "An error"}},
    }
    if not row.is_open:
        operation["security"] = [{"key": []}]
    if row.request is not None:
        schema = {"$ref": f"#/components/schemas/{row.request}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def html_page(rows: Sequence["Row"]) -> str:
    """One page that needs nothing from the network."""
    document = openapi_document(rows)
    parts = [
        f"<!doctype html><title>vllm</title><style>{_STYLE}</style><h1>vllm {__version__}</h1>"
    ]
    for row in rows:
        parts.append(f"<h2>{'|'.join(row.methods)} {html.escape(row.path)}</h2>")
        parts.append(f"<p>{html.escape(row.summary)}</p>")
        if row.request is not None:
            schema = document["components"]["schemas"][row.request]
            parts.append(_table(schema))
    return "".join(parts)


def _table(schema: dict[str, Any]) -> str:
    lines = []
    for name, field in schema["properties"].items():
        kinds = field.get("anyOf", [field])
        shown = " | ".join(str(kind.get("type") or kind.get("enum") or "object") for kind in kinds)
        lines.append(f"<tr><td>{html.escape(name)}</td><td>{html.escape(shown)}</td></tr>")
    return f"<table>{''.join(lines)}</table>"
