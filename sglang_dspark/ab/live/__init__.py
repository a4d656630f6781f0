"""The split of live traffic between two fleets by HAProxy: the weight, what changes it, and the record of why."""
