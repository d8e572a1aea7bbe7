"""The HTTP interface of the aggregator: routes, documents and access control."""
