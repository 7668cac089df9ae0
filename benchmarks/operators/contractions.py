"""Sums of products that are no plain matrix products of f32."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case


def _torch_i8(t: Any, f: Any, a: Any, b: Any) -> Any:
    return t._int_mm(a, b)


def _torch_experts(t: Any, f: Any, x: Any, expert: Any, w: Any) -> Any:
    y = x.new_empty(x.shape[0], w.shape[2])
    for e in range(w.shape[0]):
        mine = (expert == e).nonzero()[:, 0]
        y[mine] = x[mine] @ w[e]
    return y


CASES = (
    Case(
        "matrix times vector",
        "matvec",
        lambda d: (d(1000, 4096), d(4096)),
        lambda t, f, a, x: a @ x,
        lambda j, n, a, x: a @ x,
    ),
    Case(
        "vector times matrix",
        "op f(x: f32[K], a: f32[K, M]) -> (y: f32[M]) { y[m] = sum[k](x[k] * a[k, m]) }",
        lambda d: (d(4096), d(4096, 1000)),
        lambda t, f, x, a: x @ a,
        lambda j, n, x, a: x @ a,
    ),
    Case(
        "product of f64",
        "matmul",
        lambda d: (d(300, 256, dtype="f64"), d(256, 500, dtype="f64")),
        lambda t, f, a, b: a @ b,
        lambda j, n, a, b: a @ b,
    ),
    Case(
        "product of bytes",
        """op f(a: i8[M, K], b: i8[K, N]) -> (c: i32[M, N]) {
          c[i, j] = sum[k](i32(a[i, k]) * i32(b[k, j]))
        }""",
        lambda d: (d.ints(-128, 128, 256, 512, dtype="i8"), d.ints(-128, 128, 512, 512, dtype="i8")),
        _torch_i8,
        lambda j, n, a, b: j.lax.dot(a, b, preferred_element_type="int32"),
    ),
    Case(
        "dense layer of bf16",
        """op f(x: bf16[T, I], w: bf16[O, I], b: bf16[O]) -> (y: bf16[T, O]) {
          s[t, o] = sum[i](f32(x[t, i]) * f32(w[o, i]))
          y[t, o] = bf16(s[t, o] + f32(b[o]))
        }""",
        lambda d: (d(512, 768, dtype="bf16"), d(768, 768, dtype="bf16"), d(768, dtype="bf16")),
        lambda t, f, x, w, b: f.linear(x, w, b),
        lambda j, n, x, w, b: (j.lax.dot(x, w.T, preferred_element_type="float32") + b).astype(x.dtype),
    ),
    Case(
        "weights of bytes times a vector",
        """op f(x: f32[B, K], w: i8[N, K], s: f32[N]) -> (y: f32[B, N]) {
          y[b, n] = sum[k](x[b, k] * f32(w[n, k])) * s[n]
        }""",
        lambda d: (d(1, 2048), d.ints(-128, 128, 2048, 2048, dtype="i8"), d.unit(2048)),
        lambda t, f, x, w, s: (x @ w.float().T) * s,
        lambda j, n, x, w, s: (x @ w.astype("f4").T) * s,
    ),
    Case(
        "many products of 4 x 4",
        "matmul",
        lambda d: (d(20_000, 4, 4), d(20_000, 4, 4)),
        lambda t, f, a, b: t.bmm(a, b),
        lambda j, n, a, b: a @ b,
    ),
    Case(
        "product of long rows with few columns",
        "op f(x: f32[M, K], w: f32[K, N]) -> (y: f32[M, N]) { y[i, j] = sum[k](x[i, k] * w[k, j]) }",
        lambda d: (d(64, 4096), d(4096, 20)),
        lambda t, f, x, w: x @ w,
        lambda j, n, x, w: x @ w,
    ),
    Case(
        "product of three factors",
        """op f(x: f32[B, I], w: f32[I, J, O], y: f32[B, J]) -> (z: f32[B, O]) {
          p[b, j, o] = sum[i](x[b, i] * w[i, j, o])
          z[b, o] = sum[j](p[b, j, o] * y[b, j])
        }""",
        lambda d: (d(64, 64), d(64, 64, 64), d(64, 64)),
        lambda t, f, x, w, y: t.einsum("bi,ijo,bj->bo", x, w, y),
        lambda j, n, x, w, y: n.einsum("bi,ijo,bj->bo", x, w, y),
    ),
    Case(
        "covariance of columns",
        """op f(x: f32[T, D]) -> (c: f32[D, D]) where T >= 1 {
          m[d] = mean[t](x[t, d])
          z[t, d] = x[t, d] - m[d]
          c[a, b] = sum[t](z[t, a] * z[t, b]) / f32(T)
        }""",
        lambda d: (d(2000, 128),),
        lambda t, f, x: t.cov(x.T, correction=0),
        lambda j, n, x: n.cov(x, rowvar=False, bias=True),
    ),
    Case(
        "contraction of two of four axes",
        """op f(a: f32[I, K, L], b: f32[L, J, K]) -> (c: f32[I, J]) {
          c[i, j] = sum[k, l](a[i, k, l] * b[l, j, k])
        }""",
        lambda d: (d(128, 32, 32), d(32, 128, 32)),
        lambda t, f, a, b: t.einsum("ikl,ljk->ij", a, b),
        lambda j, n, a, b: n.einsum("ikl,ljk->ij", a, b),
    ),
    Case(
        "traces of products",
        """op f(a: f32[B, N, M], b: f32[B, M, N]) -> (y: f32[B]) {
          y[z] = sum[i, k](a[z, i, k] * b[z, k, i])
        }""",
        lambda d: (d(200, 64, 64), d(200, 64, 64)),
        lambda t, f, a, b: t.einsum("bij,bji->b", a, b),
        lambda j, n, a, b: n.einsum("bij,bji->b", a, b),
    ),
    Case(
        "attention of f16",
        """op f(q: f16[B, S, D], k: f16[B, T, D], v: f16[B, T, D]) -> (o: f16[B, S, D]) where T >= 1 {
          s[b, i, j] = sum[d](q[b, i, d] * k[b, j, d]) * rsqrt(D)
          p = softmax(s)
          o[b, i, d] = sum[j](p[b, i, j] * v[b, j, d])
        }""",
        lambda d: (d(48, 128, 64, dtype="f16"), d(48, 128, 64, dtype="f16"), d(48, 128, 64, dtype="f16")),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        lambda j, n, q, k, v: (
            j.nn.softmax((q @ k.swapaxes(1, 2)).astype("f4") * q.shape[-1] ** -0.5, -1).astype("f2") @ v
        ),
    ),
    Case(
        "attention of groups of heads",
        """op f(q: f32[B, H, G, S, D], k: f32[B, H, T, D], v: f32[B, H, T, D])
            -> (o: f32[B, H, G, S, D]) where T >= 1 {
          s[b, h, g, i, j] = sum[d](q[b, h, g, i, d] * k[b, h, j, d]) * rsqrt(D)
          p = softmax(s)
          o[b, h, g, i, d] = sum[j](p[b, h, g, i, j] * v[b, h, j, d])
        }""",
        lambda d: (d(2, 4, 4, 128, 64), d(2, 4, 128, 64), d(2, 4, 128, 64)),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(
            q.reshape(2, 16, 128, 64), k, v, enable_gqa=True
        ).view(q.shape),
        lambda j, n, q, k, v: j.nn.softmax(n.einsum("bhgid,bhjd->bhgij", q, k) * 0.125, -1) @ v[:, :, None],
    ),
    Case(
        "attention within a window",
        """op f(q: f32[B, S, D], k: f32[B, S, D], v: f32[B, S, D]) -> (o: f32[B, S, D]) where S >= 1 {
          s[b, i, r] = sum[d](q[b, i, d] * k[b, i - r, d]) * rsqrt(D) if i >= r else
              -1e30 for i in 0..S, r in 0..32
          p = softmax(s)
          o[b, i, d] = sum[r in 0..32](p[b, i, r] * v[b, i - r, d] if i >= r else 0.0) for i in 0..S
        }""",
        lambda d: (d(8, 512, 64), d(8, 512, 64), d(8, 512, 64)),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(
            q, k, v, attn_mask=t.ones(512, 512, dtype=t.bool).tril().triu(-31)
        ),
        lambda j, n, q, k, v: (
            j.nn.softmax(
                n.where(
                    n.tri(512, dtype=bool) & ~n.tri(512, k=-32, dtype=bool),
                    q @ k.swapaxes(1, 2) * 0.125,
                    -n.inf,
                ),
                -1,
            )
            @ v
        ),
    ),
    Case(
        "linear attention",
        """op f(q: f32[B, S, D], k: f32[B, S, D], v: f32[B, S, D]) -> (o: f32[B, S, D]) {
          a[b, s, d] = exp(q[b, s, d])
          c[b, s, d] = exp(k[b, s, d])
          m[b, d, e] = sum[s](c[b, s, d] * v[b, s, e])
          z[b, d] = sum[s](c[b, s, d])
          o[b, s, e] = sum[d](a[b, s, d] * m[b, d, e]) / sum[d](a[b, s, d] * z[b, d])
        }""",
        lambda d: (d(16, 512, 64), d(16, 512, 64), d(16, 512, 64)),
        lambda t, f, q, k, v: (
            (q.exp() @ (k.exp().transpose(1, 2) @ v)) / (q.exp() @ k.exp().sum(1)[:, :, None])
        ),
        lambda j, n, q, k, v: (
            (n.exp(q) @ (n.exp(k).swapaxes(1, 2) @ v)) / (n.exp(q) @ n.exp(k).sum(1)[:, :, None])
        ),
    ),
    Case(
        "experts chosen for each token",
        """op f(x: f32[T, D], expert: i64[T], w: f32[8, D, H]) -> (y: f32[T, H]) {
          y[t, h] = sum[d](x[t, d] * w[expert[t], d, h])
        }""",
        lambda d: (d(256, 256), d.ints(0, 8, 256), d(8, 256, 256)),
        lambda t, f, x, e, w: t.bmm(x[:, None], w[e])[:, 0],
        lambda j, n, x, e, w: n.einsum("td,tdh->th", x, w[e]),
        eager=_torch_experts,
    ),
    Case(
        "low rank update of a dense layer",
        """op f(x: f32[T, I], w: f32[O, I], a: f32[R, I], b: f32[O, R]) -> (y: f32[T, O]) {
          r[t, k] = sum[i](x[t, i] * a[k, i])
          y[t, o] = sum[i](x[t, i] * w[o, i]) + 0.5 * sum[k](r[t, k] * b[o, k])
        }""",
        lambda d: (d(128, 512), d(512, 512), d(8, 512), d(512, 8)),
        lambda t, f, x, w, a, b: x @ w.T + 0.5 * (x @ a.T @ b.T),
        lambda j, n, x, w, a, b: x @ w.T + 0.5 * (x @ a.T @ b.T),
    ),
    Case(
        "convolution along time",
        """op f(x: f32[B, C, T], w: f32[K, C, 5], bias: f32[K]) -> (y: f32[B, K, T-4]) where T >= 5 {
          y[b, k, t] = sum[c, r](x[b, c, t + r] * w[k, c, r]) + bias[k]
        }""",
        lambda d: (d(8, 64, 400), d(64, 64, 5), d(64)),
        lambda t, f, x, w, b: f.conv1d(x, w, b),
        lambda j, n, x, w, b: j.lax.conv_general_dilated(x, w, (1,), "VALID") + b[:, None],
    ),
    Case(
        "dilated convolution",
        """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3]) -> (y: f32[N, K, H-4, W-4]) where H >= 5, W >= 5 {
          y[n, k, p, q] = sum[c, r, s](x[n, c, p + 2*r, q + 2*s] * w[k, c, r, s])
        }""",
        lambda d: (d(4, 32, 32, 32), d(32, 32, 3, 3)),
        lambda t, f, x, w: f.conv2d(x, w, dilation=2),
        lambda j, n, x, w: j.lax.conv_general_dilated(x, w, (1, 1), "VALID", rhs_dilation=(2, 2)),
    ),
    Case(
        "convolution of groups of channels",
        """op f(x: f32[N, G, C, H, W], w: f32[G, K, C, 3, 3]) -> (y: f32[N, G, K, H-2, W-2])
            where H >= 3, W >= 3 {
          y[n, g, k, p, q] = sum[c, r, s](x[n, g, c, p + r, q + s] * w[g, k, c, r, s])
        }""",
        lambda d: (d(4, 8, 8, 30, 30), d(8, 8, 8, 3, 3)),
        lambda t, f, x, w: f.conv2d(x.view(4, 64, 30, 30), w.view(64, 8, 3, 3), groups=8).view(
            4, 8, 8, 28, 28
        ),
        lambda j, n, x, w: j.lax.conv_general_dilated(
            x.reshape(4, 64, 30, 30), w.reshape(64, 8, 3, 3), (1, 1), "VALID", feature_group_count=8
        ).reshape(4, 8, 8, 28, 28),
    ),
    Case(
        "transposed convolution to twice the size",
        """op f(x: f32[N, C, H, W], w: f32[C, K, 2, 2]) -> (y: f32[N, K, 2*H, 2*W]) {
          y[n, k, p, q] = sum[c](x[n, c, p // 2, q // 2] * w[c, k, p % 2, q % 2])
        }""",
        lambda d: (d(4, 64, 16, 16), d(64, 32, 2, 2)),
        lambda t, f, x, w: f.conv_transpose2d(x, w, stride=2),
        lambda j, n, x, w: n.einsum("nchw,ckrs->nkhrws", x, w).reshape(4, 32, 32, 32),
    ),
    Case(
        "convolution of volumes",
        """op f(x: f32[N, C, D, H, W], w: f32[K, C, 3, 3, 3]) -> (y: f32[N, K, D-2, H-2, W-2])
            where D >= 3, H >= 3, W >= 3 {
          y[n, k, o, p, q] = sum[c, a, r, s](x[n, c, o + a, p + r, q + s] * w[k, c, a, r, s])
        }""",
        lambda d: (d(1, 8, 18, 26, 26), d(16, 8, 3, 3, 3)),
        lambda t, f, x, w: f.conv3d(x, w),
        lambda j, n, x, w: j.lax.conv_general_dilated(x, w, (1, 1, 1), "VALID"),
    ),
    Case(
        "convolution to one channel, padded",
        """op f(x: f32[N, C, H, W], w: f32[K, C, 3, 3], b: f32[K]) -> (y: f32[N, K, H, W]) {
          y = conv2d(x, w, b, P=1)
        }""",
        lambda d: (d(4, 64, 28, 28), d(1, 64, 3, 3), d(1)),
        lambda t, f, x, w, b: f.conv2d(x, w, b, padding=1),
        lambda j, n, x, w, b: j.lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1))) + b[0],
    ),
    Case(
        "transform of blocks of 8 x 8",
        """op f(x: f32[8*P, 8*Q], c: f32[8, 8]) -> (y: f32[P, Q, 8, 8]) {
          t[i, j, u, b] = sum[a](c[u, a] * x[8*i + a, 8*j + b]) for i in 0..P, j in 0..Q, b in 0..8
          y[i, j, u, v] = sum[b](t[i, j, u, b] * c[v, b])
        }""",
        lambda d: (d(512, 512), d(8, 8)),
        lambda t, f, x, c: t.einsum("ua,iajb,vb->ijuv", c, x.view(64, 8, 64, 8), c),
        lambda j, n, x, c: n.einsum("ua,iajb,vb->ijuv", c, x.reshape(64, 8, 64, 8), c),
    ),
    Case(
        "product of few columns, turned",
        "op f(x: f32[K, N], w: f32[K, O]) -> (y: f32[N, O]) { y[n, o] = sum[k](x[k, n] * w[k, o]) }",
        lambda d: (d(48, 40_000), d(48, 8)),
        lambda t, f, x, w: x.T @ w,
        lambda j, n, x, w: x.T @ w,
    ),
    Case(
        "distances of rows of five",
        """op f(x: f32[M, K], w: f32[N, K]) -> (y: f32[M, N]) {
          y[i, j] = sum[k]((x[i, k] - w[j, k]) ** 2)
        }""",
        lambda d: (d(1000, 5), d(1000, 5)),
        lambda t, f, x, w: ((x[:, None] - w) ** 2).sum(2),
        lambda j, n, x, w: ((x[:, None] - w) ** 2).sum(2),
        eager=lambda t, f, x, w: t.cdist(x, w) ** 2,
    ),
    Case(
        "many products of 5 x 5, turned",
        "op f(x: f32[B, N, N], w: f32[B, N, N]) -> (y: f32[B, N, N]) {\n"
        "  y[b, i, j] = sum[k](x[b, i, k] * w[b, j, k])\n}",
        lambda d: (d(16_000, 5, 5), d(16_000, 5, 5)),
        lambda t, f, x, w: t.bmm(x, w.transpose(1, 2)),
        lambda j, n, x, w: n.einsum("bik,bjk->bij", x, w),
    ),
)
