"""Least squares from sums at every λ at once: one eigendecomposition, predictions, and rows left out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from consilience.glm.sums import Moments

NO_PRIOR = 1e-10  # λ/n that counts as 0, and lets columns that depend on each other be


class Spectrum(NamedTuple):
    """Least squares at every λ at once: the eigenvectors of a scatter, shared by all outputs or one set for each.

    Attributes:
        mean: Of each feature [D].
        scale: The deviation of each feature [D].
        centre: Where a set's rows have their centre, in units of the deviations [B, D].
        basis: Eigenvectors, in columns [B, D, D].
        values: Eigenvalues [B, D].
        coefficients: Σ y z along the eigenvectors [C, D].
        offset: The outputs' weighted means [C].
        weight: Σ of the rows' precisions [B].
        spread: Σ (y − ȳ)² of every output [C].
        size: n.
        share: λ/n.
    """

    mean: Tensor
    scale: Tensor
    centre: Tensor
    basis: Tensor
    values: Tensor
    coefficients: Tensor
    offset: Tensor
    weight: Tensor
    spread: Tensor
    size: Tensor
    share: Tensor

    @property
    def shrunk(self) -> Tensor:
        """The eigenvalues with λ added [B, D]."""
        return self.values + self.share * self.size

    def at(self, share: float) -> Spectrum:
        """Choose λ.

        Returns:
            The fit there.
        """
        return self._replace(share=torch.as_tensor(share, dtype=torch.float64))

    def least_squares(self) -> Spectrum:
        """Leave the prior out.

        Returns:
            The fit with λ → 0; as it is where the noise came with the sums, or rows are no more than weights.
        """
        plain = self.at(NO_PRIOR)
        left = plain.size - 1 - (plain.values / plain.shrunk).sum(-1)
        return plain if float(self.share) > 0 and float(left.min()) > 0.5 else self

    def linear(self) -> tuple[Tensor, Tensor]:
        """Write the means as a linear layer of features as they are.

        Returns:
            Weights [C, D] and biases [C].
        """
        weight = (self.basis @ (self.coefficients / self.shrunk).unsqueeze(-1)).squeeze(-1)
        bias = self.offset - (weight * self.centre).sum(1)
        weight = weight / self.scale
        return weight, bias - weight @ self.mean

    @property
    def freedom(self) -> Tensor:
        """Degrees of freedom that n rows leave for the noise: n − 1 − Σ g/(g + λ), n − p where λ is 0 (MacKay 1992).

        Infinite where no λ was chosen: then the noise came with the sums.
        """
        used = (self.values / self.shrunk.clamp(min=1e-300)).sum(-1)
        left = (self.size - 1 - used).clamp(min=1)
        return torch.where(self.share > 0, left, torch.inf)

    @property
    def rest(self) -> Tensor:
        """σ² of every output [C] by the squares that the fit leaves, over their degrees of freedom."""
        weights = self.coefficients / self.shrunk
        squares = self.residual - self.share * self.size * (weights**2).sum(-1)
        scale = self.spread.clamp(min=1e-300)
        return torch.where(self.share > 0, squares.clamp(min=1e-12 * scale) / self.freedom, self.noise)

    @property
    def noise(self) -> Tensor:
        """σ² of every output [C] by the marginal likelihood, where λ is as likely as can be."""
        return self.residual.clamp(min=1e-12) / (self.size - 1).clamp(min=1)

    @property
    def residual(self) -> Tensor:
        """What is left of the spread, the prior's part included [C]."""
        return self.spread - (self.coefficients**2 / self.shrunk).sum(-1)

    def rotate(self, features: Tensor) -> Tensor:
        """Take rows to the eigenvectors, which does not depend on λ.

        Args:
            features: φ [N, D].

        Returns:
            [B, N, D].
        """
        z = (features.to(self.mean) - self.mean) / self.scale
        return (z - self.centre.unsqueeze(1)) @ self.basis

    def latent(self, rotated: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the outputs' functions.

        Args:
            rotated: What `rotate` returned.

        Returns:
            Means [N, C] and variances in units of the noise [N, B].
        """
        weights = self.coefficients / self.shrunk
        if len(rotated) == 1:  # the eigenvectors are shared
            means = rotated[0] @ weights.T
        else:
            means = torch.einsum("cnd,cd->nc", rotated, weights)
        variances = torch.einsum("bnd,bd->nb", rotated**2, 1 / self.shrunk)
        return means + self.offset, variances + 1 / self.weight

    def log_shrinkage(self, share: float) -> Tensor:
        """Evaluate what λ takes from the marginal likelihood along a set's eigenvectors.

        Returns:
            ½ Σ log λ/(g + λ) [B].
        """
        penalty = share * self.size
        return 0.5 * (penalty.log() - (self.values + penalty).log()).sum(-1)

    def latent_left_out(self, rotated: Tensor, marks: Tensor, noise: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """Predict the outputs' functions at rows of the totals as if each row were not among them.

        Args:
            rotated: What `rotate` returned.
            marks: The rows' targets y [N, C].
            noise: The variance of each target.

        Returns:
            Means y − (y − ŷ)/(1 − h) [N, C] and variances v/(1 − h) [N, B], h = v/noise.
        """
        means, variances = self.latent(rotated)
        rest = (1 - variances / noise).clamp(min=1e-6)
        return marks - (marks - means) / rest, variances / rest


def least_squares(m: Moments) -> Spectrum:
    """Prepare unweighted least squares on all outputs, which share one set of eigenvectors.

    Args:
        m: The moments of all rows.

    Returns:
        The fit with λ = 0.
    """
    values, basis = torch.linalg.eigh(m.scatter)
    centre = torch.zeros_like(m.mean).unsqueeze(0)
    return Spectrum(
        m.mean, m.scale, centre, basis.unsqueeze(0), values.clamp(min=0).unsqueeze(0), m.cross @ basis, m.target,
        m.size.reshape(1), m.spread, m.size, torch.zeros_like(m.size),
    )  # fmt: skip
