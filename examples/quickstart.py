"""Five sites that hardly share a class learn together in one round; ends with quickstart/report.html."""

import consilience as co

# Handwritten digits, split so that each site sees few of the ten classes; 30 labelled rows stay at the server.
sites = co.datasets.digits().split(co.splits.dirichlet(0.1), sites=5, calibration=30, seed=0)
task = co.classification(co.models.mlp(sites.features, sites.classes))

result = co.run(co.methods.EvidencePooling(), task, sites, seed=0)
print(result)  # scores with intervals, beside each site alone, the server alone and all data in one place

x = sites.all_test.x[:3]
p = result.predict(x)
for probs, doubt, between in zip(p.probs, p.epistemic, p.disagreement, strict=True):
    print(f"a {probs.argmax()} ({probs.max():.0%}); {doubt:.2f} nats of doubt, {between:.2f} of it between the sites")

print("Report:", result.save("quickstart") / "report.html")
