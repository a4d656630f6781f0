"""The A/B of ways to serve: throughput per device against the speed each user gets, offline and on live traffic."""
