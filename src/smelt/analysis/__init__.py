"""Facts about a graph that passes ask for: aliases, dependence, liveness, cost. None of them changes it."""

from smelt.analysis.aliases import Aliases, OutputAlias, alias_analysis, is_external, output_aliases
from smelt.analysis.cost import Cost, cost, total_cost
from smelt.analysis.dependence import Dependence, dependence, is_static
from smelt.analysis.liveness import last_uses, live_bytes, nbytes, taken_by_regions, used_by, used_values
from smelt.analysis.region_aliases import RegionAliases, conflicts, region_aliases

__all__ = [
    "Aliases",
    "Cost",
    "Dependence",
    "OutputAlias",
    "RegionAliases",
    "alias_analysis",
    "conflicts",
    "cost",
    "dependence",
    "is_external",
    "is_static",
    "last_uses",
    "live_bytes",
    "nbytes",
    "output_aliases",
    "region_aliases",
    "taken_by_regions",
    "total_cost",
    "used_by",
    "used_values",
]
