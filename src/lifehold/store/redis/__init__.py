"""Leases in Redis or Valkey (docs/explanation/redis.md)."""
