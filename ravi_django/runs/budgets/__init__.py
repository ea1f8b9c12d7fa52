"""Budgets of trees, users and tenants: accounts, reservations and sums.

Owns BudgetAccount and Reservation. The admin writes DailyBudget, which is read here. It must survive a worker that dies
with a reservation: the reservation is freed, and a budget is overspent by at most one call. Read `ledger.py` first.
"""
