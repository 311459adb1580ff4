"""The process of deciding. What a permit depends on (grants) is the ledger's."""
