"""Fails with half a character, a script, what steers a terminal, and a name that is no name."""

# passes: nothing
# says: cannot be imported
half = "\ud800"
raise type(f"<script>alert(1)</script>{half}", (Exception,), {})(
    f"{half} \x1b[2J\x00 </pre><script>alert(1)</script>\u202e"
)
