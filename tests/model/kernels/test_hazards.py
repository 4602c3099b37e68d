"""The detector of registers that change under a running wgmma, on loops of a few instructions as ptxas writes them."""

import pytest

from tests.model.kernels.hazards import hazards

LOOP = """
.L_x_1:
        /*0010*/                   {before} ;
        /*0020*/                   HGMMA.64x16x16.F32.BF16 R24, R64, gdesc[UR8], R24 ;   /* 0x0010 */
        /*0030*/                   HGMMA.64x16x16.F32.BF16 R24, {operand}, gdesc[UR8], R24, gsb0 ;
        /*0040*/                   WARPGROUP.DEPBAR.LE gsb0, {younger} ;
        /*0050*/                   {after} ;
        /*0060*/              @!P0 BRA `(.L_x_1) ;
"""


def found(before: str = "NOP", after: str = "NOP", younger: str = "0x1", operand: str = "R68") -> list[set[int]]:
    """The registers of each hazard in the loop."""
    listing = LOOP.format(before=before, after=after, younger=younger, operand=operand).splitlines()
    return [set(one.registers) for one in hazards(listing)]


@pytest.mark.parametrize(
    ("instruction", "registers"),
    [
        ("LDS.128 R64, [R2+UR4]", {64, 65, 66, 67}),
        ("PRMT R71, R3, 0x5410, R4", {71}),
        ("IMAD.WIDE.U32 R66, R3, 0x4, R8", {66, 67}),
        ("LDSM.16.M88.2 R70, [R5]", {70, 71}),
        ("@P1 MOV R65, R3", {65}),
        ("SHFL.IDX P2, R69, R3, R4, 0x1f", {69}),
        ("LDS.64 R63, [R2]", {64}),
    ],
)
def test_a_register_that_an_unfinished_product_reads(instruction: str, registers: set[int]) -> None:
    """After the group, and before it: then the next pass of the loop writes what this one reads."""
    assert found(after=instruction) == [registers]
    assert found(before=instruction) == [registers]


@pytest.mark.parametrize(
    "instruction",
    [
        "LDS.128 R72, [R64]",
        "STS.128 [R64], R68",
        "BAR.SYNC.DEFER_BLOCKING R64, 0x80",
        "FSETP.GT.AND P0, PT, R64, R65, PT",
        "R2UR UR8, R64",
        "NOP",
    ],
)
def test_what_writes_no_such_register(instruction: str) -> None:
    assert not found(before=instruction, after=instruction)


def test_a_group_that_has_ended() -> None:
    assert not found(after="LDS.128 R64, [R2]", younger="0x0")


def test_an_operand_in_shared_memory() -> None:
    assert found(after="LDS.128 R68, [R2]", operand="R68")
    assert not found(after="LDS.128 R68, [R2]", operand="gdesc[UR4]")


def test_code_without_products() -> None:
    assert not hazards([".L_x_1:", "MOV R64, R3 ;", "BRA `(.L_x_1) ;"])
