"""Requests to people: questions, approvals, who may answer, answers, escalation and mail.

Owns HumanRequest, StickyDecision and Delegation. It must survive two answers at once: one counts. Read
`requests.py` first.
"""
