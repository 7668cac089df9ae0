"""`polyfuse explore`: a local page on which the compiler can be watched.

programs    what the page asks, the stages of it, findings as the editor shows them
views       what each tab shows
child       the process that answers, with limits of time and memory
server      the page and its requests; only this machine may ask
static      the page: plain scripts, and CodeMirror in one file (`bundle` has how it was made)
"""
