# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# Vectors, sorting, a linear model, lists of strings.
count <- as.numeric(commandArgs(trailingOnly = TRUE)[1])
set.seed(7)
x <- rnorm(count)
y <- 3 * x + rnorm(count)
ordered <- sort(x)
stopifnot(!is.unsorted(ordered), length(ordered) == count)
model <- lm(y ~ x)
words <- paste0("key", sample(count / 10, count / 4, replace = TRUE), "/", seq_len(count / 4))
groups <- table(substr(words, 4, 6))
matrix <- crossprod(matrix(x[seq_len(300 * 1000)], ncol = 300))
cat(format(sum(ordered), digits = 12), format(coef(model), digits = 12), format(sum(matrix), digits = 9), "\n")
cat(length(unique(words)), sum(groups), sum(nchar(words)), "\n")
