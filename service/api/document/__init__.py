"""The OpenAPI document, and the table of fields in the documentation, made from the routes."""
