"""What NumPy says of the operators in `examples/operators`: one function for each, of its arguments by name.

Written from the papers in plain loops, in float64. Nothing of polyfuse is involved, and the method is another
one than that of the operator where there is another: paths are enumerated, matrices inverted, transforms
and rotations left to NumPy and SciPy. A function returns the results, or a dictionary of results and of what
`inout` parameters become.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage, signal, spatial, special

Array = npt.NDArray[Any]


# --- windows of images ------------------------------------------------------------------------------------


def pooling(x: Array, K: int = 2, S: int = 0, P: int = 0) -> dict[str, Array]:
    S = S or K
    border = ((0, 0), (0, 0), (P, P), (P, P))
    low = np.pad(x, border, constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(low, (K, K), (2, 3))[:, :, ::S, ::S]
    kept = np.where(np.isinf(windows), 0.0, windows)
    count = (~np.isinf(windows)).sum((-2, -1))
    return {"greatest": windows.max((-2, -1)), "average": kept.sum((-2, -1)) / count}


def convolution(
    x: Array, w: Array, bias: Array | None = None, S: int = 1, P: int = 0, D: int = 1, G: int = 1
) -> Array:
    n, channels = x.shape[:2]
    filters, c, r, v = w.shape
    wide = np.zeros((filters, c, D * (r - 1) + 1, D * (v - 1) + 1))
    wide[:, :, ::D, ::D] = w
    padded = np.pad(x, ((0, 0), (0, 0), (P, P), (P, P)))
    found = []
    for one, k in itertools.product(range(n), range(filters)):
        group = k // (filters // G)
        parts = [signal.correlate2d(padded[one, group * c + j], wide[k, j], "valid") for j in range(c)]
        found.append(sum(parts)[::S, ::S] + (0.0 if bias is None else bias[k]))
    assert channels == G * c
    return np.array(found).reshape(n, filters, *found[0].shape)


def group_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, *, G: int, eps: float = 1e-5
) -> Array:
    parts = np.stack(np.split(x, G, axis=1), axis=1)
    axes = (2, 3, 4)
    z = (parts - parts.mean(axes, keepdims=True)) / np.sqrt(parts.var(axes, keepdims=True) + eps)
    scale = 1.0 if gamma is None else gamma[:, None, None]
    return z.reshape(x.shape) * scale + (0.0 if beta is None else beta[:, None, None])


def bilinear(image: Array, v: float, u: float, mode: str) -> float:
    return float(ndimage.map_coordinates(image, [[v], [u]], order=1, mode=mode)[0])


def roi_align(x: Array, roi: Array, scale: float = 1.0, P: int = 7, S: int = 2) -> Array:
    height, width = x.shape[2:]
    y = np.zeros((len(roi), x.shape[1], P, P))
    for (r, box), c, p, q in itertools.product(enumerate(roi), range(x.shape[1]), range(P), range(P)):
        left, top, right, bottom = box[1:] * scale - 0.5
        for a, b in itertools.product(range(S), range(S)):
            v = top + (bottom - top) * (p + (a + 0.5) / S) / P
            u = left + (right - left) * (q + (b + 0.5) / S) / P
            if -1 <= v <= height and -1 <= u <= width:
                y[r, c, p, q] += bilinear(x[int(box[0]), c], v, u, "nearest") / (S * S)
    return y


def deformable_sampling(
    x: Array, offset: Array, weight: Array, mask: Array | None = None, K: int = 3, S: int = 1, P: int = 1
) -> Array:
    samples, filters, (rows, columns) = len(x), len(weight), offset.shape[2:]
    if mask is None:
        mask = np.ones((samples, K * K, rows, columns))
    bordered = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = np.zeros((samples, filters, rows, columns))
    for n, i, j, a, b in itertools.product(*map(range, (samples, rows, columns, K, K))):
        k = a * K + b
        v = i * S - P + a + offset[n, 2 * k, i, j]
        u = j * S - P + b + offset[n, 2 * k + 1, i, j]
        taken = [mask[n, k, i, j] * bilinear(image, v + 1, u + 1, "constant") for image in bordered[n]]
        y[n, :, i, j] += weight[:, :, a, b] @ taken
    return y


def ssim(x: Array, y: Array, range: float = 1.0, sigma: float = 1.5, K: int = 11) -> dict[str, Array]:
    bell = signal.windows.gaussian(K, sigma)
    window = np.outer(bell, bell) / bell.sum() ** 2
    c1, c2 = (0.01 * range) ** 2, (0.03 * range) ** 2

    def one(a: Array, b: Array) -> float:
        def mean(z: Array) -> Array:
            return signal.correlate2d(z, window, "valid")

        ma, mb = mean(a), mean(b)
        va, vb, cov = mean(a * a) - ma * ma, mean(b * b) - mb * mb, mean(a * b) - ma * mb
        alike = (2 * ma * mb + c1) * (2 * cov + c2)
        return float((alike / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean())

    return {
        "similarity": np.array(
            [np.mean([one(*ab) for ab in zip(*s, strict=True)]) for s in zip(x, y, strict=True)]
        )
    }


# --- boxes ------------------------------------------------------------------------------------------------


def box_iou(a: Array, b: Array) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    both = float(np.prod(np.maximum(sides, 0)))
    return both / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both)


def ciou(box: Array, target: Array, eps: float = 1e-7) -> Array:
    losses = []
    for a, b in zip(box, target, strict=True):
        iou = box_iou(a, b)
        around = np.maximum(a[2:], b[2:]) - np.minimum(a[:2], b[:2])
        apart = (a[:2] + a[2:]) / 2 - (b[:2] + b[2:]) / 2
        angles = [np.arctan2(*(z[2:] - z[:2])) for z in (a, b)]
        v = 4 / np.pi**2 * (angles[1] - angles[0]) ** 2
        losses.append(1 - iou + (apart @ apart) / (around @ around) + v * v / (1 - iou + v + eps))
    return np.mean(losses)


def nms(box: Array, most: float = 0.5) -> Array:
    kept: list[int] = []
    for k in range(len(box)):
        if all(box_iou(box[k], box[j]) <= most for j in kept):
            kept.append(k)
    return np.isin(np.arange(len(box)), kept)


# --- sequences and states -------------------------------------------------------------------------------


def ctc(logp: Array, target: Array, steps: Array, length: Array) -> Array:
    """The sum over all ways to say something in so many steps that reads as the target."""
    found = []
    for b, (t, n) in enumerate(zip(steps, length, strict=True)):
        total = -np.inf
        for way in itertools.product(range(logp.shape[2]), repeat=int(t)):
            said = [s for s, _ in itertools.groupby(way) if s != 0]
            if said == list(target[b, :n]):
                total = np.logaddexp(total, sum(logp[k, b, s] for k, s in enumerate(way)))
        found.append(-total)
    return np.array(found)


def viterbi(first: Array, step: Array, seen: Array) -> dict[str, Array]:
    """All paths are tried."""
    best, scores = [], []
    for one in seen:
        ways = list(itertools.product(range(len(first)), repeat=len(one)))
        score = [
            first[w[0]]
            + sum(step[a, b] for a, b in itertools.pairwise(w))
            + sum(one[t, s] for t, s in enumerate(w))
            for w in ways
        ]
        best.append(ways[int(np.argmax(score))])
        scores.append(max(score))
    return {"path": np.array(best), "score": np.array(scores)}


def kalman_step(x: Array, p: Array, f: Array, q: Array, h: Array, r: Array, z: Array) -> dict[str, Array]:
    """All measurements at once, by the inverse of their covariance."""
    states, covariances = [], []
    for one, cov, seen in zip(x, p, z, strict=True):
        state, wide = f @ one, f @ cov @ f.T + q
        gain = wide @ h.T @ np.linalg.inv(h @ wide @ h.T + np.diag(r))
        states.append(state + gain @ (seen - h @ state))
        covariances.append((np.eye(len(q)) - gain @ h) @ wide)
    return {"x_next": np.array(states), "p_next": np.array(covariances)}


def connected_components(label: Array, src: Array, dst: Array) -> dict[str, Array]:
    least = [
        min(
            [
                label[n],
                *(label[a] for a, b in (*zip(src, dst, strict=True), *zip(dst, src, strict=True)) if b == n),
            ]
        )
        for n in range(len(label))
    ]
    after = np.array([least[k] for k in least])
    return {"next": after, "changed": np.array(bool((after != label).any()))}


def sinkhorn(cost: Array, a: Array, b: Array, eps: float = 0.1, T: int = 50) -> Array:
    """By scaling rows and columns in turn."""
    plan = np.exp(-cost / eps)
    for _ in range(T):
        plan *= (a / plan.sum(1))[:, None]
        plan *= (b / plan.sum(0))[None, :]
    return plan


# --- orders -----------------------------------------------------------------------------------------------


def router(logits: Array, x: Array, C: int) -> dict[str, Array]:
    """Tokens one by one, first choices before second ones."""
    p = special.softmax(logits, axis=1)
    expert = np.argsort(-p, axis=1, kind="stable")[:, :2]
    best = np.take_along_axis(p, expert, axis=1)
    gate = best / best.sum(1, keepdims=True)
    y = np.zeros((p.shape[1], C, x.shape[1]))
    taken = [0] * p.shape[1]
    for k, t in itertools.product(range(2), range(len(x))):
        e = expert[t, k]
        if taken[e] < C:
            y[e, taken[e]] = x[t]
        else:
            gate[t, k] = 0
        taken[e] += 1
    share = np.bincount(expert[:, 0], minlength=p.shape[1]) / len(x)
    return {"y": y, "gate": gate, "expert": expert, "balance": p.shape[1] * share @ p.mean(0)}


def lovasz(x: Array, label: Array) -> Array:
    """The Lovasz extension of the set function 1 - Jaccard, as an integral over level sets."""
    p = special.softmax(x, axis=1)
    losses = []
    for c in np.unique(label):
        truth = label == c
        error = np.abs(truth - p[:, c])
        levels = np.unique(np.concatenate([[0.0], error]))
        total = 0.0
        for low, high in itertools.pairwise(levels):
            wrong = error > low
            total += (high - low) * wrong.sum() / (truth | wrong).sum()
        losses.append(total)
    return np.mean(losses)


def top_p(x: Array, u: Array, most: float = 0.9, temperature: float = 1.0) -> dict[str, Array]:
    p = special.softmax(x / temperature, axis=1)
    kept, tokens = np.zeros_like(p), []
    for b, row in enumerate(p):
        ways = sorted(range(len(row)), key=lambda v: -row[v])
        count = next((k for k in range(1, len(row)) if row[ways[:k]].sum() >= most), len(row))
        chosen = ways[:count]
        kept[b, chosen] = row[chosen] / row[chosen].sum()
        tokens.append(chosen[int(np.searchsorted(np.cumsum(kept[b, chosen]), u[b], "right"))])
    return {"kept": kept, "token": np.array(tokens)}


def beam_step(logp: Array, score: Array, seen: Array, end: int = 0) -> dict[str, Array]:
    beams, tokens = logp.shape[1:]
    best, after = [], []
    for one, s, old in zip(logp, score, seen, strict=True):
        ways = []
        for k, v in itertools.product(range(beams), range(tokens)):
            if old[k, -1] != end:
                ways.append((s[k] + one[k, v], [*old[k], v]))
            elif v == end:
                ways.append((s[k], [*old[k], v]))
        ways.sort(key=lambda w: -w[0])
        best.append([w[0] for w in ways[:beams]])
        after.append([w[1] for w in ways[:beams]])
    return {"best": np.array(best), "next": np.array(after)}


# --- sparse and quantised ---------------------------------------------------------------------------------


def ragged_softmax(x: Array, start: Array) -> Array:
    return np.concatenate([special.softmax(part) if part.size else part for part in np.split(x, start[1:-1])])


def csr_attention(q: Array, k: Array, v: Array, ptr: Array, col: Array) -> Array:
    """As dense attention with a mask; each edge counts, also one that comes twice."""
    nodes, heads, width = q.shape
    y = np.zeros((nodes, heads, v.shape[2]))
    for n, h in itertools.product(range(nodes), range(heads)):
        there = col[ptr[n] : ptr[n + 1]]
        if there.size:
            y[n, h] = special.softmax(k[there, h] @ q[n, h] / np.sqrt(width)) @ v[there, h]
    return y


def int4_matmul(x: Array, q: Array, scale: Array, zero: Array, G: int = 128) -> Array:
    """The bits as NumPy unpacks them."""

    def nibbles(words: Array) -> Array:
        """Eight numbers for each word, along the last axis, the lowest bits first."""
        pairs = np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(*words.shape, 4)
        return np.stack([pairs & 15, pairs >> 4], -1).reshape(*words.shape[:-1], -1).astype("f8")

    whole = nibbles(q.T).T
    return x @ ((whole - np.repeat(nibbles(zero), G, 0)) * np.repeat(scale, G, 0))


# --- numbers ----------------------------------------------------------------------------------------------


def fft(re: Array, im: Array) -> dict[str, Array]:
    y = np.fft.fft(re + 1j * im)
    return {"yre": y.real, "yim": y.imag}


def butterfly(re: Array, im: Array, M: int) -> dict[str, Array]:
    """Blocks of 2 M numbers: what the transforms of their halves make together."""
    z = (re + 1j * im).reshape(len(re), -1, 2, M)
    whole = np.empty((*z.shape[:2], 2 * M), complex)
    whole[..., 0::2], whole[..., 1::2] = np.fft.ifft(z[:, :, 0]), np.fft.ifft(z[:, :, 1])
    y = np.fft.fft(whole).reshape(re.shape)
    return {"yre": y.real, "yim": y.imag}


def quaternion_rotation(q: Array, p: Array) -> Array:
    turns = [spatial.transform.Rotation.from_quat(one, scalar_first=True) for one in q]
    return np.array([turn.apply(points) for turn, points in zip(turns, p, strict=True)])


def mel_filter_bank(
    power: Array, rate: float = 16000.0, low: float = 0.0, least: float = 1e-10, M: int = 80
) -> Array:
    """Triangles by interpolation between the corners."""

    def mel(hertz: float) -> float:
        return 2595 * float(np.log10(1 + hertz / 700))

    corners = 700 * (10 ** (np.linspace(mel(low), mel(rate / 2), M + 2) / 2595) - 1)
    hertz = np.linspace(0, rate / 2, power.shape[1])
    bank = [np.interp(hertz, corners[m : m + 3], (0, 1, 0)) for m in range(M)]
    return np.log(np.maximum(power @ np.array(bank).T, least))


# --- losses -----------------------------------------------------------------------------------------------


def histogram_loss(x: Array, label: Array, R: int = 51) -> Array:
    nodes = np.linspace(-1, 1, R)
    histograms = {True: np.zeros(R), False: np.zeros(R)}
    for i, j in itertools.combinations(range(len(x)), 2):
        s = x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])
        k = min(int((s + 1) * (R - 1) / 2), R - 2)
        part = (s - nodes[k]) / (nodes[1] - nodes[0])
        histograms[bool(label[i] == label[j])][[k, k + 1]] += 1 - part, part
    positive, negative = (h / h.sum() for h in (histograms[True], histograms[False]))
    return negative @ np.cumsum(positive)


def focal(x: Array, target: Array, alpha: float = 0.25, gamma: float = 2.0) -> Array:
    p = special.expit(x)
    right = np.where(target == 1, p, 1 - p)
    return (np.where(target == 1, alpha, 1 - alpha) * (1 - right) ** gamma * -np.log(right)).mean()


def arcface(x: Array, centre: Array, label: Array, margin: float = 0.5, scale: float = 64.0) -> Array:
    losses = []
    for one, own in zip(x, label, strict=True):
        cosine = centre @ one / np.linalg.norm(one) / np.linalg.norm(centre, axis=1)
        angle = np.arccos(cosine[own])
        if angle + margin <= np.pi:
            cosine[own] = np.cos(angle + margin)
        losses.append(special.logsumexp(scale * cosine) - scale * cosine[own])
    return np.mean(losses)


def dice(x: Array, label: Array, smooth: float = 1.0) -> Array:
    p = special.softmax(x, axis=1)
    losses = []
    for n, c in itertools.product(range(len(x)), range(x.shape[1])):
        truth = label[n] == c
        losses.append(1 - (2 * p[n, c][truth].sum() + smooth) / (p[n, c].sum() + truth.sum() + smooth))
    return np.mean(losses)


# --- steps of optimizers ----------------------------------------------------------------------------------


def lars(
    p: Array,
    g: Array,
    m: Array,
    lr: float = 0.1,
    momentum: float = 0.9,
    decay: float = 1e-4,
    trust: float = 1e-3,
) -> dict[str, Array]:
    lengths = np.linalg.norm(p), np.linalg.norm(g)
    rate = trust * lengths[0] / (lengths[1] + decay * lengths[0]) if all(lengths) else 1.0
    m = momentum * m + lr * rate * (g + decay * p)
    return {"p": p - m, "m": m}


def adafactor(p: Array, g: Array, r: Array, c: Array, step: int, lr: float = 1e-2) -> dict[str, Array]:
    beta = 1 - step**-0.8
    r = beta * r + (1 - beta) * (g * g + 1e-30).sum(1)
    c = beta * c + (1 - beta) * (g * g + 1e-30).sum(0)
    u = g / np.sqrt(np.outer(r, c) / r.sum())
    u /= max(1, np.sqrt((u * u).mean()))
    alpha = max(1e-3, np.sqrt((p * p).mean())) * min(lr, 1 / np.sqrt(step))
    return {"p": p - alpha * u, "r": r, "c": c}


def newton_schulz(x: Array) -> Array:
    left, values, right = np.linalg.svd(x, full_matrices=False)
    return (left * (3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5)) @ right


def muon(g: Array, m: Array, momentum: float = 0.95) -> dict[str, Array]:
    """The same polynomial of the singular values."""
    m = momentum * m + g
    y = g + momentum * m
    y = y / (np.linalg.norm(y) + 1e-7)
    for _ in range(5):
        y = newton_schulz(y)
    return {"y": y, "m": m}


def ema(average: Array, p: Array, step: int, decay: float = 0.999) -> dict[str, Array]:
    d = min(decay, (1 + step) / (10 + step))
    return {"average": d * average + (1 - d) * p}


# --- bits -------------------------------------------------------------------------------------------------


def drawn(seed: int, stream: int, i: int) -> float:
    """Philox4x32-10 in integers of Python, from the paper: a number of [0, 1) of 24 bits."""
    split = [(n % 2**32, n // 2**32) for n in map(int, (i, stream, seed))]
    counter, key = [*split[0], *split[1]], list(split[2])
    for _ in range(10):
        high, low = divmod(0xD2511F53 * counter[0], 2**32), divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [low[0] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], high[1]]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return float((counter[0] // 2**8) / 2**24)


def mask(seed: int, stream: int, p: float, shape: tuple[int, ...]) -> Array:
    kept = [drawn(seed, stream, i) >= p for i in range(int(np.prod(shape)))]
    return np.array(kept, float).reshape(shape) / (1 - p)


def dropout_norm(x: Array, r: Array, gamma: Array, beta: Array, seed: int, stream: int = 0,
                 p: float = 0.1) -> dict[str, Array]:  # fmt: skip
    s = r + x * mask(seed, stream, p, x.shape)
    mu, rstd = s.mean(1), 1 / np.sqrt(s.var(1) + 1e-5)
    return {"y": (s - mu[:, None]) * rstd[:, None] * gamma + beta, "s": s, "mu": mu, "rstd": rstd}


def dropout_norm_backward(dy: Array, s: Array, gamma: Array, mu: Array, rstd: Array, seed: int,
                          stream: int = 0, p: float = 0.1) -> dict[str, Array]:  # fmt: skip
    """By the matrix of derivatives of each row."""
    z, eye = (s - mu[:, None]) * rstd[:, None], np.eye(s.shape[1])
    rows = [
        k * (eye - 1 / len(v) - np.outer(v, v) / len(v)) @ (g * gamma)
        for k, v, g in zip(rstd, z, dy, strict=True)
    ]
    dr = np.array(rows).reshape(s.shape)
    return {
        "dx": dr * mask(seed, stream, p, s.shape), "dr": dr, "dgamma": (dy * z).sum(0), "dbeta": dy.sum(0),
    }  # fmt: skip


def eighth(x: Array, digits: int, least: int, most: float) -> Array:
    """The nearest of all numbers with so many digits and such a least exponent, of two the even one."""
    exponents = 2.0 ** np.arange(least, np.log2(most) + 1)
    steps = np.arange(2**digits, 2 ** (digits + 1)) / 2**digits
    known = np.concatenate(
        [np.arange(2**digits) * 2.0 ** (least - digits), np.outer(exponents, steps).ravel()]
    )
    known = known[known <= most]
    far = np.abs(np.minimum(np.abs(x), most)[..., None] - known)
    place = np.where(far == far.min(-1, keepdims=True), np.arange(len(known)) % 2, 2).argmin(-1)
    return np.copysign(known[place], x)


def fp8_quantise(x: Array) -> dict[str, Array]:
    scale = (np.maximum(np.abs(x).max(1), 1e-30) / 448.0).astype("f4")
    return {
        "q": eighth((x.astype("f4") / scale[:, None]).astype("f8"), 3, -6, 448.0),
        "scale": scale.astype("f8"),
    }


def fp8_matmul(x: Array, w: Array, of_x: Array, of_w: Array) -> Array:
    return (x.astype("f8") * of_x[:, None]) @ (w.astype("f8") * of_w[:, None]).T
