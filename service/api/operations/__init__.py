"""Endpoints for operators: liveness, readiness, health and metrics."""
