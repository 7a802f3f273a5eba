# Intercepts of the sites: free ones by glm and lm with a factor, random ones by lme4 (25 nodes; REML for numbers).
#
#     Rscript tests/references/centres.R > tests/references/centres.json
#
# The rows are made without random numbers, so that tests/glm/test_centres.py makes the same.
suppressMessages(library(lme4))

rows <- function(k, n = 60) {
  i <- seq_len(n)
  u <- ((i * i * 31 + i * k * 17 + k * k * 101) %% 10007) / 10007
  v <- ((i * i * 57 + i * k * 23 + k * k * 11 + 5) %% 10009) / 10009
  own <- c(-1.6, -0.9, -0.2, 0.3, 0.9, 1.7)[k]
  x <- ((i * 53 + k * 29) %% 97) / 48 - 1 + 0.3 * own
  z <- (i + k) %% 2
  eta <- own + 1.1 * x - 0.5 * z
  data.frame(site = k, x = x, z = z, y = as.integer(u < 1 / (1 + exp(-eta))), count = qpois(u, exp(0.3 + 0.5 * eta)),
             number = eta + qnorm((u + 1e-3) / 1.002), kind = ifelse(u < 0.3, 0, ifelse(v < 1 / (1 + exp(-eta)), 1, 2)))
}

d <- do.call(rbind, lapply(1:6, rows))
told <- function(fit, tau = NULL) {
  found <- coef(summary(fit))
  keep <- if (is.null(tau)) c("x", "z") else c("(Intercept)", "x", "z")
  list(estimate = as.list(found[keep, 1]), error = as.list(found[keep, 2]), tau = tau)
}
tau <- function(fit) unname(attr(VarCorr(fit)$site, "stddev"))
tight <- glmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10), tolPwrss = 1e-13)
exact <- glm.control(epsilon = 1e-15, maxit = 100)
logit <- glmer(y ~ x + z + (1 | site), d, binomial, nAGQ = 25, control = tight)
log <- glmer(count ~ x + z + (1 | site), d, poisson, nAGQ = 25, control = tight)
identity <- lmer(number ~ x + z + (1 | site), d, control = lmerControl(optCtrl = list(rhoend = 1e-10, xtol_abs = 1e-12, ftol_abs = 1e-14)))
out <- list(
  fixed = list(logit = told(glm(y ~ x + z + factor(site), binomial, d, control = exact)),
               log = told(glm(count ~ x + z + factor(site), poisson, d, control = exact)),
               identity = told(lm(number ~ x + z + factor(site), d))),
  random = list(logit = told(logit, tau(logit)), log = told(log, tau(log)), identity = told(identity, tau(identity))),
  plain = list(logit = told(glm(y ~ x + z, binomial, d, control = exact)))
)
cat(jsonlite::toJSON(out, auto_unbox = TRUE, digits = 15, pretty = TRUE), "\n")
