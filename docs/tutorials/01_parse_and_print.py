"""# 1. Parse and print

polyfuse compiles operators that are written in a small language of indexed definitions. This tutorial
walks from text to the *tensor graph*, the form that everything later works on, and looks at what the
compiler says about programs that are wrong. Every claim is checked by an assertion; run the file with
`python docs/tutorials/01_parse_and_print.py`.
"""

# %%
import numpy as np

import polyfuse as pf

# %% [markdown]
# ## An operator is a list of definitions
#
# Here is layer normalisation after a residual addition. The text is badly laid out on purpose.

# %%
TEXT = """
op layer_norm(x: f32[T, H], r: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
  s[t,h]=x[t,h]+r[t,h]   # the residual
  mu[t]=sum[h](s[t,h])/H
  var[t]=sum[h]((s[t,h]-mu[t])**2)/H
  y[t,h]=(s[t,h]-mu[t])*rsqrt(var[t]+eps)*gamma[h]+beta[h]
}
"""
program = pf.parse(TEXT)
print(program)

# %% [markdown]
# `str(program)` is the canonical layout; comments survive, and parsing the result gives it again.
#
# `T` and `H` are *sizes*. They are bound when the operator is called, from the shapes of the arguments.
# `t` and `h` are *index variables*. Nothing declares them: the range of `t` comes from the places where it
# stands alone as a subscript, such as `x[t, h]`, where it must run over the first axis of `x`.
# `s`, `mu` and `var` are intermediate tensors, and those are not declared either.

# %%
assert str(pf.parse(str(program))) == str(program)
assert "# the residual" in str(program)
assert program.ops == ("layer_norm",)

# %% [markdown]
# Two properties make such programs easy to transform. Each element is defined exactly once, so a name
# always means one thing. And the *order of the lines has no meaning*: a definition may use tensors that are
# defined below it. When things happen is for the compiler to decide, which is what the next tutorials are
# about.

# %%
lines = str(program).splitlines()
head, body, end = lines[:2], lines[2:6], lines[6:]
upside_down = pf.parse("\n".join([*head, *reversed(body), *end]))

x, r = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
gamma, beta = np.ones(8, np.float32), np.zeros(8, np.float32)
normal, reversed_text = (pf.compile(p)(x, r, gamma, beta) for p in (program, upside_down))
np.testing.assert_allclose(normal, reversed_text, rtol=1e-6, atol=1e-6)

# %% [markdown]
# ## The syntax tree
#
# The parser gives a tree of frozen dataclasses, and each node knows its place in the text (its *span*).
# That is where the carets in error messages come from. The definition of `mu`:

# %%
define = program.programs[0].ops[0].body[1]
print(define.span, "|", define.span.text)
print(define.span.caret_lines())
assert define.target == "mu"
assert define.span.text == "mu[t]=sum[h](s[t,h])/H"

# %% [markdown]
# ## The tensor graph
#
# Names are resolved, types and ranges found, calls opened, and a *statement* made of each definition. A
# statement is one assignment together with the set of index values it runs over, its *iteration domain*.

# %%
graph = program.op("layer_norm").graph()
print(graph)

# %% [markdown]
# Three things to notice:
#
# * The ranges are there now, half-open as in Python: `for t in 0..T, h in 0..H`.
# * `mu` became two statements. A reduction is always the whole right side of a statement, so the sum went
#   into a generated tensor `mu__sum`, and `mu` divides it.
# * The sizes are still symbols. Everything that can be proved is proved for *all* `T` and `H`.

# %%
assert [s.name for s in graph.statements] == ["s", "mu__sum", "mu", "var__sum", "var", "y"]
assert str(graph.statement("mu__sum")) == "mu__sum: mu__sum[t] = sum[h in 0..H](s[t, h])  for t in 0..T"
assert graph.sizes == ("T", "H")

# %% [markdown]
# `specialize` puts in some sizes, or all. What is left out stays open.

# %%
rows_open = program.op("layer_norm").specialize(H=768)
assert rows_open.graph.sizes == ("T",)
print(rows_open.graph.statement("var__sum"))

# %% [markdown]
# ## Errors point at the text
#
# All errors of a file are collected and reported together, each with a code, a place, and a hint if there is
# one to give.

# %%
try:
    pf.parse("""
op smooth(x: f32[N], w: f32[K]) -> (y: f32[N]) {
  z[i] = abss(x[i])
  y[i] = z[i] + weight[i]
}
""")
except pf.DslError as error:
    print(error)
    places = [(d.code, d.span.line, d.span.column) for d in error.diagnostics]
assert places == [("PF202", 3, 10), ("PF201", 4, 17)]

# %% [markdown]
# More interesting is what is grammatically fine. This moving average reads past the end of `x`: at
# `i = N - 1` the element `x[i + 1]` does not exist. That is a question about all values of `i` and `N` at
# once, and isl, the integer set library under this compiler, answers it. Where the answer is no, it also
# gives an example.


# %%
def message_of(text: str) -> str:
    """The error that a program gives."""
    try:
        pf.parse(text).op().graph()
    except pf.DslError as error:
        return str(error)
    raise AssertionError("there was no error")


said = message_of("op average(x: f32[N]) -> (y: f32[N]) { y[i] = 0.5 * (x[i] + x[i + 1]) }")
print(said)
assert "PF350" in said and "x[i + 1] out of range" in said

# %% [markdown]
# There are two ways to mend it, and the hint names them: guard the read, or shorten the range. (Where a fact
# about the sizes would help, such as `where N >= 3` for a read of `x[2]`, the hint names that.) A guard makes
# a read legal because only the chosen side of `... if ... else ...` is evaluated; isl proves the read under
# the guard.

# %%
guarded = pf.parse("""
op average(x: f32[N]) -> (y: f32[N]) {
  y[i] = 0.5 * (x[i] + x[i + 1]) if i < N - 1 else x[i]
}
""")
y = pf.compile(guarded)(np.array([1, 3, 5], np.float32))
np.testing.assert_array_equal(y, [2, 4, 5])

# %% [markdown]
# A range that does not follow with certainty is never guessed. Here the axes of `x` are mixed up by
# mistake, so that `i` would have to run over `0..N` for `y` and over `0..M` for `x`:

# %%
said = message_of("op column_sums(x: f32[N, M]) -> (y: f32[N]) { y[i] = sum[j](x[j, i]) }")
print(said)
assert "PF301" in said and "0..N" in said and "0..M" in said

# %% [markdown]
# And a definition must be complete: an element that some statement reads, or that is a result, needs a value.

# %%
said = message_of("""
op prefix_sum(x: f32[N]) -> (y: f32[N]) {
  y[i] = y[i - 1] + x[i] for i in 1..N
}
""")
print(said)
assert "PF353" in said and "y[0]" in said

# %% [markdown]
# The missing piece makes it a recurrence, a definition in terms of earlier elements. isl proves that every
# element it reads is defined before.

# %%
prefix_sum = pf.parse("""
op prefix_sum(x: f32[N]) -> (y: f32[N]) where N >= 1 {
  y[0] = x[0]
  y[i] = y[i - 1] + x[i] for i in 1..N
}
""")
np.testing.assert_array_equal(
    pf.compile(prefix_sum)(np.arange(5, dtype=np.float32)), np.cumsum(np.arange(5, dtype=np.float32))
)

# %% [markdown]
# Calls are checked as well, and the message names both arguments that do not fit together:

# %%
try:
    pf.compile(program)(x, r[:, :7], gamma, beta)
except pf.ArgumentError as error:
    print(error)
    assert error.code == "PF405"
else:
    raise AssertionError("shapes that do not fit were accepted")

# %% [markdown]
# Next: [reading a schedule tree](02_reading_a_schedule_tree.py), where the order of execution comes in.
