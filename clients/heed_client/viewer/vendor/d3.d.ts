export { scaleLinear, scaleSqrt } from "d3-scale";
export { rgb } from "d3-color";
export { interpolateBlues, interpolateCividis, interpolateGreys, interpolateInferno, interpolatePuOr, interpolateTurbo,
interpolateViridis } from "d3-scale-chromatic";
