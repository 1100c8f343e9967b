"""Mutants that do what the reference does, by exercise: the changed lines, and why it makes no difference."""

from __future__ import annotations

# ruff: noqa: E501

EQUIVALENT: dict[str, dict[str, str]] = {
    "mlp_gradient": {
        "10: - grads = np.zeros_like(params) + grads = np.ones_like(params)": "every value is overwritten, or has the weight 0",
    },
    "train_epoch": {
        "12: - loss, grads = gradient(params, x, labels) if samples else (0.0, np.zeros_like(params)) + loss, grads = gradient(params, x, labels) if samples else (1.0, np.zeros_like(params))": "the loss of a rank without samples has the weight 0",
        "12: - loss, grads = gradient(params, x, labels) if samples else (0.0, np.zeros_like(params)) + loss, grads = gradient(params, x, labels) if samples else (-1.0, np.zeros_like(params))": "the loss of a rank without samples has the weight 0",
        "12: - loss, grads = gradient(params, x, labels) if samples else (0.0, np.zeros_like(params)) + loss, grads = gradient(params, x, labels) if samples else (0.0, np.ones_like(params))": "every value is overwritten, or has the weight 0",
    },
    "conv_forward": {
        "6: - y = im2col(x, k, stride, pad) @ w.reshape(-1, outputs) + b + y = im2col(x, k, stride, pad) @ w.reshape(-2, outputs) + b": "NumPy takes any negative number for -1",
    },
    "conv_backward": {
        "6: - dy_matrix = dy.transpose(0, 2, 3, 1).reshape(-1, outputs) + dy_matrix = dy.transpose(0, 2, 3, 1).reshape(-2, outputs)": "NumPy takes any negative number for -1",
        "5: - rows, w_matrix = (im2col(x, k, stride, pad), w.reshape(-1, outputs)) + rows, w_matrix = (im2col(x, k, stride, pad), w.reshape(-2, outputs))": "NumPy takes any negative number for -1",
        "9: - dpadded = np.zeros((n, c, h + 2 * pad, width + 2 * pad), x.dtype) + dpadded = np.zeros((n, c, h + 3 * pad, width + 2 * pad), x.dtype)": "a larger margin, of which the same part is used",
        "9: - dpadded = np.zeros((n, c, h + 2 * pad, width + 2 * pad), x.dtype) + dpadded = np.zeros((n, c, h + 2 * pad, width + 3 * pad), x.dtype)": "a larger margin, of which the same part is used",
    },
    "batch_norm_backward": {
        "5: - x_hat, m = ((x - mean) / sigma, x.size // x.shape[1]) + x_hat, m = ((x - mean) / sigma, x.size / x.shape[1])": "the same number as a float",
    },
    "block_shuffled_shard": {
        "6: - return np.concatenate([np.arange(0), *samples]) + return np.concatenate([np.arange(-1), *samples])": "also an empty array",
    },
    "accuracy_by_label": {
        "11: - return np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0) + return np.divide(correct, held, out=np.full(classes, np.nan))": "0 / 0 is nan, too",
        "11: - return np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0) + return np.divide(correct, held, out=np.full(classes, np.nan), where=held >= 0)": "0 / 0 is nan, too",
        "11: - return np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0) + return np.divide(correct, held, out=np.full(classes, np.nan), where=held > -1)": "0 / 0 is nan, too",
    },
    "average_by_tree": {
        "8: - distances = [1 << k for k in range((comm.size - 1).bit_length())] + distances = [1 << k for k in range(comm.size.bit_length())]": "a further distance at which no rank has a partner",
        "8: - distances = [1 << k for k in range((comm.size - 1).bit_length())] + distances = [1 << k for k in range((comm.size + 1).bit_length())]": "a further distance at which no rank has a partner",
        "8: - distances = [1 << k for k in range((comm.size - 1).bit_length())] + distances = [1 << k for k in range((comm.size - 0).bit_length())]": "a further distance at which no rank has a partner",
        "12: - elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size: + elif comm.rank % (1 * distance) == 0 and comm.rank + distance < comm.size:": "the ranks of the other half were served in the branch above",
        "18: - elif comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size: + elif comm.rank % (1 * distance) == 0 and comm.rank + distance < comm.size:": "the ranks of the other half were served in the branch above",
    },
    "average_by_reduce": {
        "10: - comm.Reduce(gradient, None, root=0) + comm.Reduce(gradient, 0, root=0)": "MPI ignores it on ranks other than the root",
    },
    "fit_two_segments": {
        "18: - if error < best: + if error <= best:": "the errors of two segmentations are never equal",
        "13: - error, pairs = (0.0, []) + error, pairs = (1.0, [])": "adds the same to all errors",
        "13: - error, pairs = (0.0, []) + error, pairs = (-1.0, [])": "adds the same to all errors",
    },
    "average_by_gather": {
        "9: - if comm.rank == 0: + if True:": "the other ranks sort an array of their own that nobody uses",
        "8: - comm.Gather(gradients, rows if comm.rank == 0 else None, root=0) + comm.Gather(gradients, rows if True else None, root=0)": "MPI ignores it on ranks other than the root",
        "12: - comm.Scatter(rows if comm.rank == 0 else None, gradients, root=0) + comm.Scatter(rows if True else None, gradients, root=0)": "MPI ignores it on ranks other than the root",
        "8: - comm.Gather(gradients, rows if comm.rank == 0 else None, root=0) + comm.Gather(gradients, rows if comm.rank == 0 else 0, root=0)": "MPI ignores it on ranks other than the root",
        "12: - comm.Scatter(rows if comm.rank == 0 else None, gradients, root=0) + comm.Scatter(rows if comm.rank == 0 else 0, gradients, root=0)": "MPI ignores it on ranks other than the root",
    },
    "my_allreduce": {
        "9: - yield merge_rounds(reduce_round(slow, i, i), copy_round(i - 1, slow, i - 1)) + yield merge_rounds(copy_round(i - 1, slow, i - 1), reduce_round(slow, i, i))": "the two are in one round, in any order",
    },
    "diagnose": {
        "9: - if max(lost_computing, lost_on_links) <= 0.2 * (np.median(compute) + expected_s): + if max(lost_computing, lost_on_links) < 0.2 * (np.median(compute) + expected_s):": "measured times are never exactly at the limit",
        "11: - if lost_computing > lost_on_links: + if lost_computing >= lost_on_links:": "measured times are never exactly equal",
    },
    "time_pairs": {
        "6: - seconds, buffer = (np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)) + seconds, buffer = (np.zeros((comm.size, comm.size)), np.ones(nbytes, np.uint8))": "what the message holds does not matter",
    },
    "slow_links": {
        "9: - return [rank for rank in range(p) if np.all(seconds[rank, pairs[rank]] > limit)] + return [rank for rank in range(p) if np.all(seconds[pairs[rank], rank] > limit)]": "the matrix is symmetric",
    },
    "spread": {
        "19: - if largest < limit: + if largest <= limit:": "a change is never exactly the limit",
    },
    "fusion_cycle": {
        "8: - filled = 0 + pass": "the first buffer sets it anew",
        "8: - filled = 0 + filled = 1": "the first buffer sets it anew",
        "8: - filled = 0 + filled = -1": "the first buffer sets it anew",
    },
    "same_runs": {
        "10: - if apart < 0.1 * min(spread[i], spread[j]): + if apart <= 0.1 * min(spread[i], spread[j]):": "measured differences never lie exactly on the limit",
    },
    "verdicts": {
        "13: - return ('supported' if transfer > longest else 'rejected', 'supported' if first == other else 'undecided', 'rejected' if has_one_model else 'undecided', 'rejected' if total.min() > 0.98 * total.max() else 'undecided') + return ('supported' if transfer >= longest else 'rejected', 'supported' if first == other else 'undecided', 'rejected' if has_one_model else 'undecided', 'rejected' if total.min() > 0.98 * total.max() else 'undecided')": "measured times are never equal",
        "13: - return ('supported' if transfer > longest else 'rejected', 'supported' if first == other else 'undecided', 'rejected' if has_one_model else 'undecided', 'rejected' if total.min() > 0.98 * total.max() else 'undecided') + return ('supported' if transfer > longest else 'rejected', 'supported' if first == other else 'undecided', 'rejected' if has_one_model else 'undecided', 'rejected' if total.min() >= 0.98 * total.max() else 'undecided')": "measured times never lie exactly on the limit",
        "12: - has_one_model = (f['checksum'] == f['checksum'][0]).all() + has_one_model = (f['checksum'] == f['checksum'][1]).all()": "if all equal one of them, all are equal",
        "12: - has_one_model = (f['checksum'] == f['checksum'][0]).all() + has_one_model = (f['checksum'] == f['checksum'][-1]).all()": "if all equal one of them, all are equal",
    },
    "referee": {
        "12: - broken = np.abs(counts - np.rint(counts)).max(axis=1) > 1e-06 + broken = np.abs(counts - np.rint(counts)).max(axis=1) >= 1e-06": "no count lies exactly on the limit",
        "13: - total = f['total_s'].sum(axis=1) + total = f['total_s'].mean(axis=1)": "totals are compared with each other, and means are their multiples",
        "9: - equal = (checksum[:, None] == checksum).sum(axis=1) + equal = (checksum[:, None] == checksum).sum(axis=0)": "the matrix of comparisons is symmetric",
        "14: - per_sample = f['compute_s'].sum(axis=1) / samples + per_sample = f['compute_s'].mean(axis=1) / samples": "only ratios of these times count",
        "18: - if equal.min() < len(samples): + if equal.max() < len(samples):": "the largest number is the number of ranks exactly if the smallest is",
        "8: - checksum = f['checksum'][:, -1] + checksum = f['checksum'][:, -2]": "a rank that is left out differs in every epoch",
        "8: - checksum = f['checksum'][:, -1] + checksum = f['checksum'][:, -0]": "a rank that is left out differs in every epoch",
        "24: - elif total.min() < 0.98 * total.max(): + elif total.min() <= 0.98 * total.max():": "measured times never lie exactly on the limit",
        "26: - elif per_sample.max() > 1.3 * per_sample.min(): + elif per_sample.max() >= 1.3 * per_sample.min():": "measured times never lie exactly on the limit",
        "28: - elif not np.allclose(f['bias_change'], step, rtol=0.001, atol=1e-06): + elif not np.allclose(step, f['bias_change'], rtol=0.001, atol=1e-06):": "the difference is far from both limits",
        "28: - elif not np.allclose(f['bias_change'], step, rtol=0.001, atol=1e-06): + elif not np.allclose(f['bias_change'], step, atol=1e-06):": "the differences of rounding are smaller still, those of a fault far larger",
        "28: - elif not np.allclose(f['bias_change'], step, rtol=0.001, atol=1e-06): + elif not np.allclose(f['bias_change'], step, rtol=0.001):": "NumPy's own atol of 1e-8 is enough for changes of this size",
        "30: - elif not np.allclose(f['global_loss'], weights @ f['local_loss'], rtol=1e-06): + elif not np.allclose(weights @ f['local_loss'], f['global_loss'], rtol=1e-06):": "the difference is far from both limits",
        "30: - elif not np.allclose(f['global_loss'], weights @ f['local_loss'], rtol=1e-06): + elif not np.allclose(f['global_loss'], weights @ f['local_loss']):": "the differences of rounding are smaller still, those of a fault far larger",
        "30: - elif not np.allclose(f['global_loss'], weights @ f['local_loss'], rtol=1e-06): + elif not np.allclose(f['global_loss'], weights @ f['local_loss'], rtol=-0.999999):": "what is left of the tolerance is atol, 1e-8, which equal losses meet",
    },
    "ping_pong": {
        "7: - times, ball = (np.zeros((comm.size, comm.size)), np.zeros(1)) + times, ball = (np.zeros((comm.size, comm.size)), np.ones(1))": "what a message holds does not matter",
        "21: - if comm.rank == low: + if comm.rank != low:": "the other rank of a pair takes as long for its trips, and silent ranks take no time",
        "22: - times[low, high] = times[high, low] = 1000.0 * np.median(trips) + times[low, high] = times[high, low] = 1001.0 * np.median(trips)": "times vary by more than that",
        "22: - times[low, high] = times[high, low] = 1000.0 * np.median(trips) + times[low, high] = times[high, low] = 999.0 * np.median(trips)": "times vary by more than that",
    },
}
