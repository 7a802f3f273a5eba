# Makes partial_pooling.json: mixed models of two data sets that R ships, by lme4's REML.
#   Rscript tests/references/partial_pooling.R > tests/references/partial_pooling.json
# sleepstudy (lme4): reaction times over ten days, 18 subjects. Exam (mlmRev): 4 059 pupils of 65 schools.
# Columns are standardised over all rows; intercepts and slopes vary independently, as in `hierarchical`.
suppressMessages({library(lme4); library(mlmRev)})
options(digits = 15)

list_of <- function(x) paste0("[", paste(formatC(x, digits = 12, format = "g", width = 1), collapse = ", "), "]")
matrix_of <- function(m) paste0("[", paste(apply(m, 1, list_of), collapse = ", "), "]")
z <- function(x) (x - mean(x)) / sd(x)

fitted_by <- function(y, x, g) {
  m <- lmer(y ~ x + (1 | g) + (0 + x | g), REML = TRUE)
  s <- coef(summary(m))
  v <- as.data.frame(VarCorr(m))$sdcor
  ends <- suppressMessages(confint(m, c(".sig01", ".sig02"), level = 0.95, quiet = TRUE))
  c(sprintf('"estimates": %s', list_of(s[, 1])), sprintf('"errors": %s', list_of(s[, 2])),
    sprintf('"tau": %s', list_of(v[1:2])), sprintf('"tau_intervals": %s', matrix_of(ends)),
    sprintf('"sigma": %s', list_of(v[3])))
}

part <- function(name, lines) sprintf('"%s": {\n  %s\n}', name, paste(lines, collapse = ",\n  "))

y <- z(sleepstudy$Reaction); x <- z(sleepstudy$Days)
sleep <- part("sleepstudy", c(fitted_by(y, x, sleepstudy$Subject),
  sprintf('"site": %s', list_of(as.integer(sleepstudy$Subject))), sprintf('"x": %s', list_of(x)),
  sprintf('"y": %s', list_of(y))))

y <- z(Exam$normexam); x <- z(Exam$standLRT)
moments <- t(sapply(split(seq_along(y), Exam$school), function(i)
  c(length(i), sum(x[i]), sum(x[i]^2), sum(y[i]), sum(x[i] * y[i]), sum(y[i]^2))))
exam <- part("exam", c(fitted_by(y, x, Exam$school),
  sprintf('"moments": %s', matrix_of(moments))))

cat("{\n", sleep, ",\n", exam, "\n}\n", sep = "")
