"""The items about several ranks: whether those of this machine, and those of several machines, find each other.

:mod:`~blade_llm.check.ranks.local` is about one machine. With ``--nnodes`` the check runs on all machines at the same
time: they meet (:mod:`~blade_llm.check.ranks.meeting`) where the engine's machines will, machine 0 asks the others and
judges (:mod:`~blade_llm.check.ranks.judge`), and all report its items.
"""
