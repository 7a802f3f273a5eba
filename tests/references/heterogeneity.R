# Each site's own fit, and how much the sites differ: glm and coxph at each site, DerSimonian and Laird by metafor.
#
#     Rscript tests/references/heterogeneity.R > tests/references/heterogeneity.json
#
# The rows are made without random numbers, so that tests/combinations/test_heterogeneity.py makes the same.
# At site 4 nobody of level c has an event: there R's glm says 'fitted probabilities 0 or 1', and the level is left out.
suppressMessages({library(survival); library(metafor)})

rows <- function(k, n = 240) {
  i <- seq_len(n)
  u <- ((i * i * 31 + i * k * 17 + k * k * 101) %% 10007) / 10007
  x <- ((i * 53 + k * 29) %% 97) / 48 - 1
  level <- (i + k) %% 3
  intercept <- c(-2.5, -0.5, 0, 0.5, 1)[k]
  eta <- intercept + 0.9 * x + 0.6 * (level == 1) - 0.4 * (level == 2)
  y <- as.integer(u < 1 / (1 + exp(-eta)))
  if (k == 4) y[level == 2] <- 0L
  count <- floor(6 * u * exp(eta / 2))
  if (k == 4) count[level == 2] <- 0
  time <- 1 + floor(400 * u * exp(-eta / 2))
  seen <- as.integer((i * 7 + k) %% 4 > 0)
  if (k == 4) seen[level == 2] <- 0L
  data.frame(x = x, b = as.integer(level == 1), c = as.integer(level == 2), y = y, count = count, time = time, seen = seen)
}

fits <- list(
  logit = function(d) glm(y ~ x + b + c, binomial, d, epsilon = 1e-14, maxit = 100),
  log = function(d) glm(count ~ x + b + c, poisson, d, epsilon = 1e-14, maxit = 100),
  hazard = function(d) coxph(Surv(time, seen) ~ x + b + c, d, ties = "efron", control = coxph.control(eps = 1e-14, iter.max = 100))
)

describe <- function(fit) {
  terms <- c("x", "b", "c")
  lines <- lapply(1:5, function(k) {
    found <- suppressWarnings(fit(rows(k)))
    error <- setNames(sqrt(diag(vcov(found))), names(coef(found)))
    known <- terms[is.finite(coef(found)[terms]) & abs(coef(found)[terms]) < 10]
    list(estimate = as.list(coef(found)[known]), error = as.list(error[known]))
  })
  between <- lapply(setNames(terms, terms), function(term) {
    own <- unlist(lapply(lines, function(line) line$estimate[[term]]))
    error <- unlist(lapply(lines, function(line) line$error[[term]]))
    meta <- rma(own, sei = error, method = "DL")
    wide <- qt(0.975, length(own) - 2) * sqrt(meta$tau2 + meta$se^2)  # Higgins, Thompson and Spiegelhalter 2009
    list(sites = length(own), mean = as.numeric(meta$beta), mean_error = meta$se, tau = sqrt(meta$tau2), i2 = meta$I2 / 100,
         q = meta$QE, q_p = meta$QEp, newcomer_low = as.numeric(meta$beta) - wide, newcomer_high = as.numeric(meta$beta) + wide)
  })
  list(sites = lines, between = between)
}

cat(jsonlite::toJSON(lapply(fits, describe), auto_unbox = TRUE, digits = NA, pretty = TRUE), "\n")
