# Random-effects meta-analyses by metafor: three estimators of τ², Hartung and Knapp, intervals, leave-one-out, Egger.
#
#     Rscript tests/references/meta_analysis.R > tests/references/meta_analysis.json
suppressMessages(library(metafor))

cases <- list(
  differ = list(y = c(0.42, 0.91, -0.13, 0.68, 1.35, 0.22, 0.55), s = c(0.21, 0.35, 0.28, 0.15, 0.44, 0.31, 0.19)),
  alike = list(y = c(0.40, 0.46, 0.31, 0.52), s = c(0.2, 0.3, 0.25, 0.22)),
  three = list(y = c(-1.1, 0.2, 0.9), s = c(0.3, 0.2, 0.5)),
  twelve = list(y = c(0.1, 0.5, 0.3, 0.9, 0.2, 1.4, 0.6, 0.35, 0.8, 1.9, 0.15, 0.7),
                s = c(0.05, 0.2, 0.1, 0.3, 0.08, 0.5, 0.25, 0.12, 0.33, 0.6, 0.07, 0.21))
)
control <- list(threshold = 1e-14, maxiter = 10000, tol = 1e-14)
one <- function(case, method, test) {
  fit <- rma(case$y, sei = case$s, method = method, test = test, control = control)
  ends <- confint(fit, control = list(tol = 1e-13, maxiter = 100000))$random
  new <- predict(fit)
  left <- leave1out(fit)
  list(mean = c(fit$b), error = fit$se, low = fit$ci.lb, high = fit$ci.ub, p = fit$pval, tau = sqrt(fit$tau2),
       tau_low = ends["tau", "ci.lb"], tau_high = ends["tau", "ci.ub"], i2 = fit$I2 / 100,
       i2_low = ends["I^2(%)", "ci.lb"] / 100, i2_high = ends["I^2(%)", "ci.ub"] / 100, q = fit$QE, q_p = fit$QEp,
       new_low = new$pi.lb, new_high = new$pi.ub,
       left_out = list(mean = left$estimate, low = left$ci.lb, high = left$ci.ub, tau2 = left$tau2, i2 = left$I2 / 100))
}
out <- lapply(cases, function(case) {
  fits <- list()
  for (method in c("REML", "PM", "DL")) for (test in c("z", "knha")) fits[[paste(method, test)]] <- one(case, method, test)
  egger <- regtest(case$y, sei = case$s, model = "lm")
  list(y = case$y, s = case$s, fits = fits, egger = egger$pval)
})
cat(jsonlite::toJSON(out, auto_unbox = TRUE, digits = 15, pretty = TRUE), "\n")
