"""The fresh view: a current table and the changes that its history has since, as one table."""
