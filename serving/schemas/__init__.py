"""The bodies of requests and responses as pydantic models, one file per resource."""
