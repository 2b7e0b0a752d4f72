"""How a rollout reaches the threads, pools, processes, programs and services that work for it.

Only the scope is carried, never a whole context: with each task, each thread or process that is started, each program
by a variable of its environment, and each HTTP request whose headers were given to `inject`. Workers of pools start
empty, so that one which outlives a rollout claims nothing of the next.
"""
