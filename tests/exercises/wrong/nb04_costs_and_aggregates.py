"""Wrong answers to the exercises of notebook 04, and the finding that each must get."""

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "fit_cost",
        "wrong order",
        """
def fit_cost(nbytes, seconds):
    alpha, beta = np.polyfit(nbytes, seconds, 1, w=1 / seconds)
    return alpha, beta
""",
    ),
    (
        "fit_cost",
        "the smallest absolute errors",
        """
def fit_cost(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1)
    return alpha, beta
""",
    ),
    (
        "fit_cost",
        "the square of the time",
        """
def fit_cost(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / seconds**2)
    return alpha, beta
""",
    ),
    (
        "fit_cost",
        "the square root of the time",
        """
def fit_cost(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / np.sqrt(seconds))
    return alpha, beta
""",
    ),
    (
        "fit_cost",
        "only the first and the last",
        """
def fit_cost(nbytes, seconds):
    beta = (seconds[-1] - seconds[0]) / (nbytes[-1] - nbytes[0])
    return seconds[0] - beta * nbytes[0], beta
""",
    ),
    (
        "trimmed_mean",
        "sort each column by itself",
        """
def trimmed_mean(rows, drop):
    return np.sort(rows)[drop : len(rows) - drop].mean(axis=0)
""",
    ),
    (
        "trimmed_mean",
        "rows",
        """
def trimmed_mean(rows, drop):
    rows.sort(axis=0)
    return rows[drop : len(rows) - drop].mean(axis=0)
""",
    ),
    (
        "trimmed_mean",
        "nothing is left",
        """
def trimmed_mean(rows, drop):
    return np.sort(rows, axis=0)[drop:-drop].mean(axis=0)
""",
    ),
    (
        "trimmed_mean",
        "this is the median",
        """
def trimmed_mean(rows, drop):
    return np.median(rows, axis=0)
""",
    ),
    (
        "trimmed_mean",
        "divide by the number kept",
        """
def trimmed_mean(rows, drop):
    kept = np.sort(rows, axis=0)[drop : len(rows) - drop]
    return kept.sum(axis=0) / np.float32(len(rows)).astype(rows.dtype)
""",
    ),
    (
        "trimmed_mean",
        "float64",
        """
def trimmed_mean(rows, drop):
    result = np.zeros(rows.shape[1])
    for column in range(rows.shape[1]):
        result[column] = np.sort(rows[:, column])[drop : len(rows) - drop].mean()
    return result
""",
    ),
    (
        "trimmed_mean",
        "drop the smallest as well",
        """
def trimmed_mean(rows, drop):
    return np.sort(rows, axis=0)[: len(rows) - drop].mean(axis=0)
""",
    ),
    (
        "top_k",
        "choose by absolute value",
        """
def top_k(gradient, residual, k):
    residual += gradient
    indices = np.sort(np.argsort(residual)[len(residual) - k :])
    values = residual[indices]
    residual[indices] = 0
    return indices, values
""",
    ),
    (
        "top_k",
        "choose from gradient + residual",
        """
def top_k(gradient, residual, k):
    indices = np.sort(np.argsort(np.abs(gradient))[len(gradient) - k :])
    values = gradient[indices]
    residual[:] = gradient
    residual[indices] = 0
    return indices, values
""",
    ),
    (
        "top_k",
        "so they are sent again",
        """
def top_k(gradient, residual, k):
    residual += gradient
    indices = np.sort(np.argsort(np.abs(residual))[len(residual) - k :])
    return indices, residual[indices]
""",
    ),
    (
        "top_k",
        "all zeros",
        """
def top_k(gradient, residual, k):
    residual += gradient
    indices = np.sort(np.argsort(np.abs(residual))[len(residual) - k :])
    values = residual[indices]
    residual[:] = 0
    return indices, values
""",
    ),
    (
        "top_k",
        "is unchanged",
        """
def top_k(gradient, residual, k):
    total = gradient + residual
    indices = np.sort(np.argsort(np.abs(total))[len(total) - k :])
    values = total[indices]
    total[indices] = 0
    residual = total
    return indices, values
""",
    ),
    (
        "top_k",
        "the values are zero",
        """
def top_k(gradient, residual, k):
    residual += gradient
    indices = np.sort(np.argsort(np.abs(residual))[len(residual) - k :])
    residual[indices] = 0
    return indices, residual[indices]
""",
    ),
    (
        "top_k",
        "ascending",
        """
def top_k(gradient, residual, k):
    residual += gradient
    indices = np.argsort(np.abs(residual))[len(residual) - k :]
    values = residual[indices]
    residual[indices] = 0
    return indices, values
""",
    ),
    (
        "top_k",
        "gradient",
        """
def top_k(gradient, residual, k):
    gradient += residual
    indices = np.sort(np.argsort(np.abs(gradient))[len(gradient) - k :])
    values = gradient[indices]
    residual[:] = gradient
    residual[indices] = 0
    return indices, values
""",
    ),
]
