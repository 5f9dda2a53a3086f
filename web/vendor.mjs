// What the page takes of other libraries.
import dagre from "@dagrejs/dagre";
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";

export { dagre, select, zoom, zoomIdentity };
