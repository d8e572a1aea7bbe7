// What a dashboard of perfd must be, by Grafana's own types.

import type { AnnotationQuery, Dashboard } from "@grafana/schema";

/** The same, with the values of string enumerations where JSON has them. */
type Plain<T> = T extends string
  ? `${T}`
  : T extends (infer Item)[]
    ? Plain<Item>[]
    : T extends object
      ? { [Key in keyof T]: Plain<T[Key]> }
      : T;

/** What Grafana's Prometheus data source reads of an annotation, which its schema leaves open. */
interface PrometheusMark extends AnnotationQuery {
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
}

export type Checked = Plain<Omit<Dashboard, "annotations">> & {
  annotations?: { list?: Plain<PrometheusMark>[] };
};
