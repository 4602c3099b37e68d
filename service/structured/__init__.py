"""Structured output: JSON schemas, grammars, and tool calls as models write them."""
