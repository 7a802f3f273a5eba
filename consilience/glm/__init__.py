"""Linear models on fixed features from what sites add up: one model for all, or one a site.

Of one model: `linear_model`, what it is made of; `posteriors`, sums by its likelihood and what they say; `event_sums`,
derivatives of counts and times; `private`, rounds under noise; `predictions`.

`sums` and `heads` are exact pooling; `derivatives` the search for the pooled mode; `noisy` and `noisy_derivatives` the
same released with noise.

Of one a site: `hierarchy`, partial pooling; `mixed`, its variances for numbers; `site_factors`, what a site's rows say.
"""
